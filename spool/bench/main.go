package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
)

// bench is one run of the program.
type bench struct {
	report
	dir     string
	rounds  int
	time    time.Duration // that counts of each subject in each round
	restart unit.Bytes
}

// part is what -only chooses from.
type part struct {
	name    string
	measure func(*bench) error
}

var parts = []part{
	{"ack", measureAck},
	{"syncs", measureSyncs},
	{"loads", measureLoads},
	{"paced", measurePaced},
	{"space", measureSpace},
	{"scan", measureScan},
	{"removal", measureRemoval},
	{"restart", measureRestart},
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == restartChild {
		exit(openAndTell(os.Args[2]))
	}
	b := &bench{restart: 256 << 20}
	quick := flag.Bool("quick", false, "2 rounds of 1s: shows that everything works, not how fast it is")
	asJSON := flag.Bool("json", false, "print JSON and nothing else")
	only := flag.String("only", "", "parts to measure, of "+partNames()+" (all)")
	subjects := flag.String("subjects", "", "subjects whose name contains one of these words; the reference and ours always (all)")
	loadWord := flag.String("load", "", "loads whose name contains this word (all)")
	flag.StringVar(&codec, "codec", codec, "codec of our segments in the loads: zstd, s2 or none")
	profile := flag.String("cpuprofile", "", "write a CPU profile of the whole run to this file")
	flag.StringVar(&b.dir, "dir", "", "directory to work in (a new one in the directory for temporary files); its disk is what is measured")
	flag.IntVar(&b.rounds, "rounds", 5, "rounds")
	flag.DurationVar(&b.time, "time", 1500*time.Millisecond, "time of each subject in each round")
	flag.TextVar(&b.restart, "restart", b.restart, "bytes of segments in the restart part; the target is for 10GiB")
	flag.Parse()
	if *quick {
		b.rounds, b.time = 2, time.Second
	}
	if !*asJSON {
		b.out = os.Stdout
	}
	chosen, err := chooseParts(*only)
	if err != nil {
		exit(err)
	}
	chooseKinds(*subjects)
	loads = slices.DeleteFunc(loads, func(l load) bool { return !strings.Contains(l.name, *loadWord) })
	if *profile != "" {
		f, err := os.Create(*profile)
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		if err != nil {
			exit(err)
		}
		defer pprof.StopCPUProfile()
	}
	err = b.run(chosen)
	if err == nil && *asJSON {
		err = b.json(os.Stdout)
	}
	if err != nil {
		pprof.StopCPUProfile()
		exit(err)
	}
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func partNames() string {
	names := make([]string, len(parts))
	for i, p := range parts {
		names[i] = p.name
	}
	return strings.Join(names, ",")
}

func chooseParts(only string) ([]part, error) {
	if only == "" {
		return parts, nil
	}
	var chosen []part
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(parts, func(p part) bool { return p.name == name })
		if i < 0 {
			return nil, fmt.Errorf("-only: %q is none of %s", name, partNames())
		}
		chosen = append(chosen, parts[i])
	}
	return chosen, nil
}

func chooseKinds(words string) {
	if words == "" {
		return
	}
	kinds = slices.DeleteFunc(kinds, func(k kind) bool {
		keep := k.name == plainName || k.name == oursName
		for w := range strings.SplitSeq(words, ",") {
			keep = keep || strings.Contains(k.name, w)
		}
		return !keep
	})
}

func (b *bench) run(chosen []part) error {
	var err error
	if b.dir, err = os.MkdirTemp(b.dir, "forebay-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-stop
		if mnt := mounted.Load(); mnt != nil {
			_ = syscall.Unmount(*mnt, syscall.MNT_DETACH)
		}
		_ = os.RemoveAll(b.dir)
		os.Exit(130)
	}()
	b.section("%d CPUs, %s, %d rounds of %v, directory %s", runtime.NumCPU(), runtime.Version(), b.rounds, b.time, b.dir)
	for _, p := range chosen {
		if err := p.measure(b); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	b.summary()
	return nil
}

// tempDir makes a directory for one subject; done removes it and lets the disk come to rest.
func (b *bench) tempDir() (dir string, done func(), err error) {
	if dir, err = os.MkdirTemp(b.dir, "run-"); err != nil {
		return "", nil, err
	}
	return dir, func() {
		_ = os.RemoveAll(dir)
		syscall.Sync() // the removal, which stalls later syncs where freed blocks are discarded, belongs to this round
		time.Sleep(100 * time.Millisecond)
	}, nil
}
