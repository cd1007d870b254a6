package gateway

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/VictoriaMetrics/metricsql"
)

// dashboard is what Grafana takes, as far as it can be wrong about us.
type dashboard struct {
	Panels []struct {
		ID          int
		Type, Title string
		Description string
		GridPos     struct{ X, Y, W, H int }
		Targets     []struct{ Expr, LegendFormat string }
	}
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
}

// Every expression of the dashboard parses, and names metrics and labels of the reference; every panel says what it shows and has a place.
func TestDashboardShowsWhatThereIs(t *testing.T) {
	text, err := os.ReadFile("../configs/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	labels := referenceLabels(t)
	for name := range metricNames(t) { // those of the Go runtime and the process
		if !strings.HasPrefix(name, "forebay_") {
			labels[name] = ""
		}
	}
	labels["ALERTS"] = " alertname alertstate " // Prometheus has it of its rules

	variables := regexp.MustCompile(`\$[a-z]+`)
	known := map[string]bool{}
	for _, v := range d.Templating.List {
		known["$"+v.Name] = true
	}
	check := func(title, expr string) (all string) {
		for _, v := range variables.FindAllString(strings.ReplaceAll(expr, "$__rate_interval", "5m"), -1) {
			if !known[v] {
				t.Errorf("%s: no variable %s", title, v)
			}
		}
		return checkLabels(t, title, strings.ReplaceAll(expr, "$__rate_interval", "5m"), labels)
	}
	value := regexp.MustCompile(`^label_values\((.*), ([a-z]+)\)$`)
	for _, v := range d.Templating.List {
		if v.Type == "datasource" {
			continue
		}
		m := value.FindStringSubmatch(v.Definition)
		if m == nil {
			t.Errorf("variable %s: %q", v.Name, v.Definition)
		} else if all := check(v.Name, m[1]); !strings.Contains(all, " "+m[2]+" ") {
			t.Errorf("variable %s: no label %s", v.Name, m[2])
		}
	}

	legend := regexp.MustCompile(`\{\{([a-z]+)\}\}`)
	ids, taken, exprs := make(map[int]bool), make(map[[2]int]string), 0
	for _, p := range d.Panels {
		if p.Title == "" || ids[p.ID] {
			t.Errorf("panel %d %q: no title, or its number is taken", p.ID, p.Title)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %s lies upon %q, or beside the grid", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("%s says or shows nothing", p.Title)
		}
		for _, q := range p.Targets {
			exprs++
			all := check(p.Title, q.Expr)
			for _, l := range legend.FindAllStringSubmatch(q.LegendFormat, -1) {
				if !strings.Contains(all, " "+l[1]+" ") {
					t.Errorf("%s: the legend has %s, which no metric of %s has", p.Title, l[1], q.Expr)
				}
			}
		}
	}
	if exprs < 50 {
		t.Errorf("%d expressions", exprs)
	}
}

// checkLabels returns the labels of all metrics of an expression, with spaces around each.
func checkLabels(t *testing.T, title, expr string, labels map[string]string) string {
	t.Helper()
	parsed, err := metricsql.Parse(expr)
	if err != nil {
		t.Errorf("%s: %s: %v", title, expr, err)
		return ""
	}
	all := " instance job "
	metricsql.VisitAll(parsed, func(e metricsql.Expr) {
		m, ok := e.(*metricsql.MetricExpr)
		if !ok {
			return
		}
		for _, filters := range m.LabelFilterss {
			own := " instance job "
			for _, f := range filters {
				if f.Label == "__name__" {
					has, ok := labels[f.Value]
					if !ok {
						t.Errorf("%s: no metric %s", title, f.Value)
					}
					own += has
				}
			}
			for _, f := range filters {
				if f.Label != "__name__" && !strings.Contains(own, " "+f.Label+" ") {
					t.Errorf("%s: %s has no label %s", title, m.AppendString(nil), f.Label)
				}
			}
			all += own
		}
	})
	metricsql.VisitAll(parsed, func(e metricsql.Expr) {
		if a, ok := e.(*metricsql.AggrFuncExpr); ok {
			for _, by := range a.Modifier.Args {
				if !strings.Contains(all, " "+by+" ") {
					t.Errorf("%s: %s: no label %s", title, expr, by)
				}
			}
		}
	})
	return all
}

// referenceLabels are the labels of each metric of docs/METRICS.md, with spaces around each.
func referenceLabels(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(metricsFile)
	if err != nil {
		t.Fatal(err)
	}
	labels := make(map[string]string)
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) < 6 || !strings.HasPrefix(line, "| `") {
			continue
		}
		name := strings.Trim(cells[1], " `")
		has := " " + strings.NewReplacer("`", "", ",", " ").Replace(cells[4]) + " "
		labels[name] = has
		if strings.TrimSpace(cells[2]) == "histogram" {
			labels[name+"_bucket"], labels[name+"_sum"], labels[name+"_count"] = has+" le ", has, has
		}
	}
	if len(labels) < 100 {
		t.Fatalf("%d metrics in the reference", len(labels))
	}
	return labels
}
