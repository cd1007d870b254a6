package kafka

import "slices"

// Withdraw takes f back when it waits for its partition: nothing of it was sent, and its Done is not called.
func (c *Client) Withdraw(f *Flight) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := f.Topic.slotLocked(f.Partition)
	i := slices.Index(s.waiting, f)
	if i < 0 {
		return false
	}
	s.waiting = slices.Delete(s.waiting, i, i+1)
	c.outstanding -= len(f.Messages)
	c.air.Done()
	return true
}

// Renew has the producer built anew when nothing is in the air but so many messages, of flights that nobody waits for any more:
// their route goes on with another cluster. The producer would write them for as long as it takes, to a cluster that is back
// after hours as well. When others have something in the air too, it goes on: they would have to read back what they have there.
func (c *Client) Renew(messages int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.outstanding != messages {
		return false
	}
	c.condemnLocked(Verdict{Class: Dead, Reason: "abandoned", Hint: "a route goes on with another upstream; what it had in the air here is not sent any more"})
	return true
}
