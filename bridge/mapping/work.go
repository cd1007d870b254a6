package mapping

import (
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"
)

// work is what one evaluation of a condition has walked over in the values of the record, in steps of some nanoseconds. It
// counts the same for the same record always, as a clock would not.
type work int

const (
	maxWork     = 1 << 20 // some milliseconds
	bytesAStep  = 64      // of text that is read through
	valuesAStep = 4       // of an array that are passed over
	copyStep    = 8       // steps for a value that is copied
)

// spend counts n steps, and ends the evaluation when there are too many: as CEL's own limit does, by a panic that CEL takes
// for the error. An error value would not do: "error || true" is true.
func (w *work) spend(n int) {
	if *w += work(n) + 1; *w > maxWork {
		panic(interpreter.EvalCancelledError{Cause: interpreter.CostLimitExceeded, Message: "too costly: it walks over too much of the record"})
	}
}

// textCost prices the functions that read through a whole text while CEL takes them for one step, or for as many as the
// shorter text of two has.
type textCost struct{}

var _ cost.ActualCostEstimator = textCost{}

// CallCost implements cost.ActualCostEstimator. nil is CEL's own price.
func (textCost) CallCost(function, _ string, args []ref.Val, _ ref.Val) *uint64 {
	switch function {
	case "contains", "matches": // are priced by the product of both
		return nil
	}
	n := 0
	for _, a := range args {
		if text, ok := a.(types.String); ok {
			n += len(text)
		}
	}
	const short = 256
	if n <= short {
		return nil
	}
	price := uint64(n/10 + 1)
	return &price
}
