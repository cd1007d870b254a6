package spool

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if runChild() {
		return
	}
	if len(os.Args) > 1 && os.Getenv(leakEnv) == "" {
		goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/klauspost/compress/zstd.(*blockDec).startDecoder"))
		return
	}
	os.Exit(m.Run())
}
