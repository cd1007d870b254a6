// Package deploy holds what ships the gateway: the image, and checks of the compose file that need no container engine.
package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// load reads docker-compose.yml the way the compose command does, schema check and defaults included.
func load(t *testing.T) *types.Project {
	t.Helper()
	top, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	o, err := cli.NewProjectOptions([]string{filepath.Join(top, "docker-compose.yml")}, cli.WithWorkingDirectory(top))
	if err != nil {
		t.Fatal(err)
	}
	p, err := o.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestComposeHasTheWholeWay(t *testing.T) {
	p := load(t)
	names := p.ServiceNames()
	slices.Sort(names)
	if want := []string{"devices", "gateway", "kafka"}; !slices.Equal(names, want) {
		t.Errorf("services %v, want %v", names, want)
	}
}

// A build target that the Dockerfile lacks, or a file that it copies and that is not there, shows only when somebody builds.
func TestComposeBuildsWhatTheDockerfileHas(t *testing.T) {
	p := load(t)
	for name, s := range p.Services {
		if s.Build == nil {
			continue
		}
		file, err := os.ReadFile(filepath.Join(s.Build.Context, s.Build.Dockerfile))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !regexp.MustCompile(`(?m)^FROM \S+ AS ` + s.Build.Target + `$`).Match(file) {
			t.Errorf("%s: %s has no stage %q", name, s.Build.Dockerfile, s.Build.Target)
		}
		for _, m := range regexp.MustCompile(`(?m)^COPY ([^-\s]\S*) \S+$`).FindAllStringSubmatch(string(file), -1) {
			if _, err := os.Stat(filepath.Join(s.Build.Context, m[1])); err != nil {
				t.Errorf("%s: COPY %s: %v", name, m[1], err)
			}
		}
	}
}

// The gateway must reach the broker under the name that the broker gives itself.
func TestComposeGatewayFindsKafka(t *testing.T) {
	p := load(t)
	advertised := p.Services["kafka"].Environment["KAFKA_ADVERTISED_LISTENERS"]
	if advertised == nil {
		t.Fatal("kafka advertises no listener")
	}
	broker := strings.TrimPrefix(*advertised, "PLAINTEXT://")
	config, err := os.ReadFile("../configs/docker.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(config), broker) {
		t.Errorf("configs/docker.yaml does not name %s", broker)
	}
	if c := p.Services["devices"].Command; !slices.Contains(c, broker) {
		t.Errorf("devices read from %v, want %s", c, broker)
	}
}

// There is no authentication yet: nothing may be published beyond this machine.
func TestComposePublishesOnLoopbackOnly(t *testing.T) {
	for name, s := range load(t).Services {
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s publishes %s on %q", name, port.Published, port.HostIP)
			}
		}
	}
}
