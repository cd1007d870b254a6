package proof

import (
	"bufio"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// vitals are what must not grow in a process that runs for years.
type vitals struct {
	at          time.Time
	resident    float64 // bytes
	goroutines  float64
	descriptors float64
	connections float64 // of MQTT clients
}

func (v vitals) String() string {
	return fmt.Sprintf("%.1f MiB resident, %.0f goroutines, %.0f descriptors, %.0f connections",
		v.resident/(1<<20), v.goroutines, v.descriptors, v.connections)
}

// vitals asks the gateway's metrics.
func (g *gateway) vitals() (v vitals, err error) {
	resp, err := http.Get("http://" + g.admin + "/metrics")
	if err != nil {
		return v, err
	}
	defer resp.Body.Close()
	v.at = time.Now()
	found := 0
	for s := bufio.NewScanner(resp.Body); s.Scan(); {
		name, value, _ := strings.Cut(s.Text(), " ")
		to := (*float64)(nil)
		switch {
		case name == "process_resident_memory_bytes":
			to = &v.resident
		case name == "go_goroutines":
			to = &v.goroutines
		case name == "process_open_fds":
			to = &v.descriptors
		case strings.HasPrefix(name, "forebay_mqtt_connections{"):
			to = &v.connections
		default:
			continue
		}
		f, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return v, err
		}
		*to += f
		found++
	}
	if found < 4 {
		return v, fmt.Errorf("only %d of the vitals are among the metrics", found)
	}
	return v, nil
}

// medianOf is the median of one of the vitals.
func medianOf(list []vitals, of func(vitals) float64) float64 {
	var all []float64
	for _, v := range list {
		all = append(all, of(v))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

func resident(v vitals) float64    { return v.resident }
func goroutines(v vitals) float64  { return v.goroutines }
func descriptors(v vitals) float64 { return v.descriptors }
