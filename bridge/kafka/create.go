package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// Create says how a topic that does not exist is made.
type Create struct {
	// Number of partitions.
	Partitions int32 `yaml:"partitions"`

	// Replicas of each partition; 0 is the cluster's default.
	Replication int16 `yaml:"replication"`

	// Topic configuration, such as retention.ms, one key=value each.
	Configs []string `yaml:"configs"`
}

// missing makes the topic, or says how it is made.
func (c *Client) missing(ctx context.Context, admin *kadm.Client, name string) {
	c.mu.Lock()
	t, ok := c.topics[name]
	if !ok {
		c.mu.Unlock()
		return
	}
	create := t.create
	if since := time.Since(t.madeAt); since < spreadTime { // the broker that we asked does not know it yet
		t.stale, t.notBefore = true, time.Now().Add(50*time.Millisecond+since/4)
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	if create == nil {
		hint := c.createCommand(name, &Create{Partitions: 6})
		if !c.noRoute {
			hint += ", or set create_topics on the route"
		}
		c.unresolved(name, Verdict{Class: Fault, Reason: "topic_missing", Err: kerr.UnknownTopicOrPartition, Hint: hint})
		return
	}
	configs := make(map[string]*string, len(create.Configs))
	for _, kv := range create.Configs {
		k, v, _ := strings.Cut(kv, "=")
		configs[k] = &v
	}
	replication := create.Replication
	if replication == 0 {
		replication = -1 // the broker's default
	}
	made, err := admin.CreateTopic(ctx, create.Partitions, replication, configs, name)
	there := errors.Is(err, kerr.TopicAlreadyExists)
	if err != nil && !there {
		v := Classify(err)
		if v.Class != Retry {
			v.Class, v.Reason = Fault, "topic_create"
			v.Hint = "change create_topics of the route, or make the topic: " + c.createCommand(name, create)
			if errors.Is(err, kerr.TopicAuthorizationFailed) || errors.Is(err, kerr.ClusterAuthorizationFailed) {
				v.Hint = "give the gateway's user the right to create the topic (ACL CREATE), or make it: " + c.createCommand(name, create)
			}
			if made.ErrMessage != "" { // says which limit or policy it was, where the code does not
				v.Err = fmt.Errorf("%w (%s)", v.Err, made.ErrMessage)
			}
		}
		c.unresolved(name, v)
		return
	}
	if !there {
		c.log.Info("topic made", "topic", name, "partitions", create.Partitions)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	t.madeAt = time.Now()
	t.stale, t.notBefore = true, t.madeAt.Add(50*time.Millisecond)
}

// createCommand is what an operator types to make the topic.
func (c *Client) createCommand(name string, create *Create) string {
	var b strings.Builder
	fmt.Fprintf(&b, "kafka-topics.sh --bootstrap-server %s --create --topic %s --partitions %d", c.cfg.BrokerList()[0], name, create.Partitions)
	if create.Replication > 0 {
		fmt.Fprintf(&b, " --replication-factor %d", create.Replication)
	}
	for _, kv := range create.Configs {
		fmt.Fprintf(&b, " --config '%s'", kv)
	}
	return b.String()
}
