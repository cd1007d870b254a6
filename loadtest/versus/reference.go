package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"
)

// measureDisk is the least that a disk can do for one acknowledgement: 4 KiB into a file of written zeroes, and fdatasync.
func measureDisk(l load) (res result, err error) {
	const size, block = 64 << 20, 4096
	f, err := os.CreateTemp("", "versus-disk-")
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	if _, err := f.Write(make([]byte, size)); err != nil {
		return res, err
	}
	if err := f.Sync(); err != nil {
		return res, err
	}
	h := hdrhistogram.New(1, slowest, 3)
	buf := make([]byte, block)
	at := int64(0)
	began := time.Now()
	for time.Since(began) < l.Measure {
		start := time.Now()
		if _, err := f.WriteAt(buf, at); err != nil {
			return res, err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return res, err
		}
		_ = h.RecordValue(max(1, time.Since(start).Microseconds()))
		at = (at + block) % size
	}
	return result{
		Broker: "disk", Rate: float64(h.TotalCount()) / time.Since(began).Seconds(),
		P50: float64(h.ValueAtQuantile(50)) / 1000, P99: float64(h.ValueAtQuantile(99)) / 1000,
	}, nil
}

// measureSpool asks the spool's own benchmark for its rate without MQTT before it.
func measureSpool(bench string, l load) (result, error) {
	if l.Publishers != 1 || l.Window != 1024 {
		return result{}, errors.New("the spool's benchmark has no such load")
	}
	cmd := exec.Command(bench, "-json", "-only", "loads", "-load", "1024 outstanding", "-subjects", "none", "-rounds", "1", "-time", l.Measure.String())
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return result{}, fmt.Errorf("%s: %w", bench, err)
	}
	var told struct {
		Tables []struct {
			Rows []struct {
				Subject string  `json:"subject"`
				Rate    float64 `json:"records_per_second"`
				P50     float64 `json:"p50_ms"`
				P99     float64 `json:"p99_ms"`
				CPU     float64 `json:"cpu_us_per_record"`
			} `json:"rows"`
		} `json:"tables"`
	}
	if err := json.Unmarshal(out, &told); err != nil {
		return result{}, err
	}
	for _, t := range told.Tables {
		for _, r := range t.Rows {
			if r.Subject == "forebay spool" {
				return result{Broker: "spool", Rate: r.Rate, P50: r.P50, P99: r.P99, CPU: r.CPU}, nil
			}
		}
	}
	return result{}, fmt.Errorf("%s: no figure of the spool", bench)
}
