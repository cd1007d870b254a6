package mqtt

// fifo is a queue in one slice, whose front moves: taking one out costs nothing, and an empty one holds no memory.
type fifo[T any] struct {
	list []T
	head int
}

func (q *fifo[T]) len() int { return len(q.list) - q.head }

// at returns the i-th from the front.
func (q *fifo[T]) at(i int) *T { return &q.list[q.head+i] }

func (q *fifo[T]) push(v T) {
	if q.head > 32 && q.head > len(q.list)/2 {
		n := copy(q.list, q.list[q.head:])
		clear(q.list[n:])
		q.list, q.head = q.list[:n], 0
	}
	q.list = append(q.list, v)
}

func (q *fifo[T]) pop() {
	var none T
	q.list[q.head] = none
	if q.head++; q.head == len(q.list) {
		q.list, q.head = nil, 0
	}
}

func (q *fifo[T]) reset() { q.list, q.head = nil, 0 }
