package main

import (
	"encoding/binary"
	"errors"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/tidwall/wal"
	bolt "go.etcd.io/bbolt"

	"github.com/forebay-gateway/forebay/spool"
)

// boltStore is bbolt as it comes: one transaction a group, a key a message.
type boltStore struct {
	db  *bolt.DB
	buf []byte
}

var boltBucket = []byte("log")

func openBbolt(dir string) (subject, error) {
	db, err := bolt.Open(filepath.Join(dir, "bolt.db"), 0o640, nil)
	if err != nil {
		return nil, err
	}
	err = db.Update(func(tx *bolt.Tx) error { _, err := tx.CreateBucket(boltBucket); return err })
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return group(&boltStore{db: db}), nil
}

func (s *boltStore) write(group []entry) error {
	return s.db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket(boltBucket)
		s.buf = s.buf[:0]
		for _, e := range group {
			n, err := b.NextSequence()
			if err != nil {
				return err
			}
			from := len(s.buf)
			s.buf = appendPlain(s.buf, e.rec)
			v := s.buf[from:len(s.buf):len(s.buf)]
			if err := b.Put(binary.BigEndian.AppendUint64(nil, n), v); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *boltStore) close() error { return s.db.Close() }

// walStore is tidwall/wal with its defaults, which sync; an entry a message.
type walStore struct {
	log   *wal.Log
	next  uint64
	batch wal.Batch
	buf   []byte
}

func openWAL(dir string) (subject, error) {
	log, err := wal.Open(filepath.Join(dir, "wal"), nil)
	if err != nil {
		return nil, err
	}
	return group(&walStore{log: log, next: 1}), nil
}

func (s *walStore) write(group []entry) error {
	s.batch.Clear()
	for _, e := range group {
		s.buf = appendPlain(s.buf[:0], e.rec)
		s.batch.Write(s.next, s.buf) // copies
		s.next++
	}
	return s.log.WriteBatch(&s.batch)
}

func (s *walStore) close() error { return s.log.Close() }

// natsLog is a JetStream stream of an embedded server without network, file storage, sync always.
type natsLog struct {
	server *server.Server
	conn   *nats.Conn
	js     nats.JetStreamContext
	acks   chan natsAck
	done   chan struct{}
}

type natsAck struct {
	future nats.PubAckFuture
	entry  entry
}

const maxOutstanding = 16 << 10

func openNATS(dir string) (subject, error) {
	s, err := server.NewServer(&server.Options{
		ServerName: "bench", DontListen: true, JetStream: true, StoreDir: dir, SyncAlways: true, NoLog: true, NoSigs: true,
	})
	if err != nil {
		return nil, err
	}
	go s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		return nil, errors.New("nats: server does not start")
	}
	l := &natsLog{server: s, acks: make(chan natsAck, maxOutstanding), done: make(chan struct{})}
	if l.conn, err = nats.Connect("", nats.InProcessServer(s)); err != nil {
		return nil, err
	}
	if l.js, err = l.conn.JetStream(nats.PublishAsyncMaxPending(maxOutstanding)); err != nil {
		return nil, err
	}
	if _, err = l.js.AddStream(&nats.StreamConfig{Name: "LOG", Subjects: []string{"plant.>"}, Storage: nats.FileStorage}); err != nil {
		return nil, err
	}
	go l.run()
	return l, nil
}

func (l *natsLog) append(r *spool.Record, done spool.Completion) error {
	f, err := l.js.PublishMsgAsync(&nats.Msg{Subject: "plant.telemetry", Data: r.Payload})
	if err != nil {
		return err
	}
	l.acks <- natsAck{f, entry{r, done}}
	return nil
}

func (l *natsLog) run() {
	defer close(l.done)
	for a := range l.acks {
		var err error
		select {
		case <-a.future.Ok():
		case err = <-a.future.Err():
		}
		a.entry.done.Durable(a.entry.rec, err)
	}
}

func (l *natsLog) settle() {}

func (l *natsLog) close() error {
	close(l.acks)
	<-l.done
	l.conn.Close()
	l.server.Shutdown()
	l.server.WaitForShutdown()
	return nil
}
