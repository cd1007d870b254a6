package mapping

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/types"

	"github.com/forebay-gateway/forebay/spool"
)

// condition is a CEL expression over a record. It has no clock and no randomness: the same record always gives the same
// answer.
type condition struct {
	text    string
	program cel.Program
	bounded bool // its greatest cost is known to be small, and is not counted while it runs
}

const (
	maxCondition = 8 << 10 // bytes of an expression
	maxNesting   = 64      // of parentheses and operators in it

	// maxCost is what one evaluation may cost. A comparison or a look-up is 1, ten bytes of a string that is searched are 1:
	// some milliseconds at most.
	maxCost = 100_000
)

var conditions = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		cel.Variable("topic", cel.StringType),
		cel.Variable("levels", cel.ListType(cel.StringType)),
		cel.Variable("client_id", cel.StringType),
		cel.Variable("user_name", cel.StringType),
		cel.Variable("qos", cel.IntType),
		cel.Variable("retain", cel.BoolType),
		cel.Variable("received_at", cel.TimestampType),
		cel.Variable("payload", cel.BytesType),
		cel.Variable("payload_size", cel.IntType),
		cel.Variable("content_type", cel.StringType),
		cel.Variable("response_topic", cel.StringType),
		cel.Variable("correlation_data", cel.BytesType),
		cel.Variable("payload_format", cel.IntType),
		cel.Variable("user", cel.MapType(cel.StringType, cel.StringType)),
		cel.Variable("json", cel.DynType),
		cel.Variable("id", cel.StringType),
		cel.Variable("gateway", cel.StringType),
		cel.Variable("stream", cel.StringType),
		cel.OptionalTypes(),
		cel.ParserExpressionSizeLimit(maxCondition),
		cel.ParserRecursionLimit(maxNesting),
	)
})

// sizes tells the estimate how large the fields of a record can be.
type sizes struct{ payload uint64 }

func (s sizes) EstimateSize(n cost.AstNode) *cost.SizeEstimate {
	path := n.Path()
	if len(path) == 0 {
		return nil
	}
	upTo := func(size uint64) *cost.SizeEstimate { return &cost.SizeEstimate{Max: size} }
	switch path[0] {
	case "json":
		return upTo(s.payload)
	case "payload":
		return nil // it may be as large as a PUBLISH: what walks over it is counted
	}
	return upTo(65535) // bytes of a string in MQTT, and so levels of a topic
}

func (sizes) EstimateCallCost(string, string, *cost.AstNode, []cost.AstNode) *cost.CallEstimate {
	return nil
}

// parseCondition compiles an expression. Faults name line and column, counted from 1.
func parseCondition(text string, maxJSON int) (*condition, error) {
	env, err := conditions()
	if err != nil {
		panic("BUG: mapping: " + err.Error())
	}
	if len(text) > maxCondition {
		return nil, fmt.Errorf("%d bytes, at most %d", len(text), maxCondition)
	}
	ast, issues := env.Compile(text)
	if err := issues.Err(); err != nil {
		var faults []string
		for _, e := range issues.Errors() {
			faults = append(faults, fmt.Sprintf("line %d, column %d: %s", e.Location.Line(), e.Location.Column()+1, strings.TrimSpace(e.Message)))
		}
		return nil, errors.New(strings.Join(faults, "; "))
	}
	if t := ast.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("line 1, column 1: the expression is of type %v, want true or false", t)
	}
	c := &condition{text: text}
	options := []cel.ProgramOption{cel.EvalOptions(cel.OptOptimize)}
	if estimate, err := env.EstimateCost(ast, sizes{uint64(maxJSON)}); err == nil && estimate.Max <= maxCost {
		c.bounded = true
	} else {
		options = append(options, cel.CostLimit(maxCost), cel.CostTracking(textCost{}))
	}
	if c.program, err = env.Program(ast, options...); err != nil {
		return nil, err
	}
	return c, nil
}

// holds evaluates the condition for the record in hand.
func (c *condition) holds(s *Scratch) (bool, error) {
	s.work = 0
	out, _, err := c.program.Eval(s)
	if err != nil {
		if fault, ok := errors.AsType[*Fault](s.jsonErr); ok && s.m.cfg.OnFault.InvalidJSON != Missing {
			return false, fault
		}
		return false, &Fault{ConditionError, fmt.Errorf("condition: %w", err)}
	}
	b, ok := out.(types.Bool)
	if !ok {
		return false, &Fault{ConditionError, fmt.Errorf("condition: it is of type %s and not true or false", out.Type().TypeName())}
	}
	return bool(b), nil
}

// ResolveName implements the activation of a condition: the variables are the fields of the record in hand.
func (s *Scratch) ResolveName(name string) (any, bool) {
	rec := s.rec
	switch name {
	case "topic":
		return types.String(rec.Topic), true
	case "levels":
		s.celLevels = celLevels{rec.Topic, &s.work}
		return &s.celLevels, true
	case "client_id":
		return types.String(rec.ClientID), true
	case "user_name":
		return types.String(rec.UserName), true
	case "qos":
		return types.Int(rec.QoS), true
	case "retain":
		return types.Bool(rec.Retain), true
	case "received_at":
		return types.Timestamp{Time: time.Unix(0, rec.ReceivedAt).UTC()}, true
	case "payload":
		return types.Bytes(rec.Payload), true
	case "payload_size":
		return types.Int(len(rec.Payload)), true
	case "json":
		n, err := s.json(nil)
		if err != nil {
			return types.WrapErr(err), true
		}
		return n.cel(), true
	case "id":
		return types.String(s.m.ID(rec)), true
	case "gateway":
		return types.String(s.m.who.Gateway), true
	case "stream":
		return types.String(s.m.who.Stream), true
	}
	p := rec.Properties
	if p == nil {
		p = new(spool.Properties)
	}
	switch name {
	case "content_type":
		return types.String(p.ContentType), true
	case "response_topic":
		return types.String(p.ResponseTopic), true
	case "correlation_data":
		return types.Bytes(p.CorrelationData), true
	case "payload_format":
		return types.Int(p.PayloadFormat), true
	case "user":
		s.celUser = celUser{p, &s.work}
		return &s.celUser, true
	}
	return nil, false
}

// Parent implements the activation: there is none.
func (s *Scratch) Parent() cel.Activation { return nil }

// Evaluation is how one condition of a mapping ends for a record.
type Evaluation struct {
	Key   string `json:"key"` // of the configuration
	Text  string `json:"text"`
	Holds bool   `json:"holds"`
	Error string `json:"error,omitempty"`
}

// Evaluate says how every condition ends for rec, in the order in which they are asked, those too that would not be.
func (m *Mapper) Evaluate(s *Scratch, rec *spool.Record) (out []Evaluation) {
	s.begin(rec)
	add := func(key string, c *condition) {
		e := Evaluation{Key: key, Text: c.text}
		holds, err := c.holds(s)
		if e.Holds = holds; err != nil {
			e.Error = err.Error()
		}
		out = append(out, e)
	}
	if m.condition != nil {
		add("condition", m.condition)
	}
	for i := range m.choices {
		add(fmt.Sprintf("choose[%d].when", i), m.choices[i].when)
	}
	return out
}
