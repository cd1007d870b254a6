package kafkatest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// here is the directory of this package's sources: pom.xml stands beside them.
func here() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(file)
}

// Jars returns the directory that holds the broker's jars, fetching them on first use (45 MB, about ten seconds).
// The fetch goes into a directory of its own that is renamed when it is complete, so an interrupted one is not taken for
// whole and two test processes may fetch at the same time.
func Jars() (string, error) {
	dir := os.Getenv("FOREBAY_KAFKA_JARS")
	if dir == "" {
		dir = filepath.Join(here(), "..", "..", ".kafka", "jars")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("kafkatest: %w", err)
	}
	if found, _ := filepath.Glob(filepath.Join(dir, "kafka_2.13-*.jar")); len(found) > 0 {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", fmt.Errorf("kafkatest: %w", err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "fetch-")
	if err != nil {
		return "", fmt.Errorf("kafkatest: %w", err)
	}
	defer os.RemoveAll(tmp)
	cmd := exec.Command("mvn", "-q", "-B", "-f", filepath.Join(here(), "pom.xml"),
		"dependency:copy-dependencies", "-DoutputDirectory="+tmp)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("kafkatest: fetch the broker's jars with mvn: %w\n%s", err, out)
	}
	if err := os.Rename(tmp, dir); err != nil {
		if found, _ := filepath.Glob(filepath.Join(dir, "kafka_2.13-*.jar")); len(found) > 0 {
			return dir, nil // another process was quicker
		}
		return "", fmt.Errorf("kafkatest: %w", err)
	}
	return dir, nil
}
