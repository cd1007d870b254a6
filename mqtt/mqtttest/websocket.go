package mqtttest

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Opcodes of WebSocket frames (RFC 6455, 5.2).
const (
	FrameText   = 1
	FrameBinary = 2
	FrameClose  = 8
	FramePing   = 9
	FramePong   = 10
)

// DialWebSocket connects to a WebSocket listener with sub-protocol mqtt.
func DialWebSocket(t testing.TB, addr net.Addr, path string) *Client {
	t.Helper()
	ws, answer, err := Upgrade(addr, path, "Sec-WebSocket-Protocol: mqtt")
	if err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode != http.StatusSwitchingProtocols || answer.Header.Get("Sec-WebSocket-Protocol") != "mqtt" {
		t.Fatalf("upgrade: %s, sub-protocol %q", answer.Status, answer.Header.Get("Sec-WebSocket-Protocol"))
	}
	return NewClient(t, ws)
}

// WebSocket is a client's connection after the upgrade. Read returns what binary frames carry, Write sends one binary
// frame.
type WebSocket struct {
	net.Conn
	in   []byte // raw bytes
	data []byte // from binary frames
	done error
}

// Upgrade asks for a WebSocket with these headers, of the form "Name: value", besides those of RFC 6455. The connection is
// only good when the answer says so.
func Upgrade(addr net.Addr, path string, headers ...string) (*WebSocket, *http.Response, error) {
	conn, err := net.Dial(addr.Network(), addr.String())
	if err != nil {
		return nil, nil, err
	}
	return UpgradeOver(conn, addr.String(), path, headers...)
}

// UpgradeOver is Upgrade over a connection that is there, of TLS for example.
func UpgradeOver(conn net.Conn, host, path string, headers ...string) (*WebSocket, *http.Response, error) {
	_ = conn.SetDeadline(time.Now().Add(patience))
	lines := append([]string{
		"GET " + path + " HTTP/1.1", "Host: " + host, "Connection: Upgrade", "Upgrade: websocket",
		"Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
	}, headers...)
	if _, err := io.WriteString(conn, strings.Join(lines, "\r\n")+"\r\n\r\n"); err != nil {
		return nil, nil, err
	}
	r := bufio.NewReader(conn)
	answer, err := http.ReadResponse(r, nil)
	if err != nil {
		return nil, nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	ws := &WebSocket{Conn: conn}
	ws.in, _ = r.Peek(r.Buffered())
	return ws, answer, nil
}

// Write sends b in one binary frame.
func (w *WebSocket) Write(b []byte) (int, error) { return len(b), w.WriteFrame(FrameBinary, true, b) }

// WriteFrame sends one masked frame.
func (w *WebSocket) WriteFrame(opcode byte, last bool, b []byte) error {
	head := []byte{opcode, 0x80}
	if last {
		head[0] |= 0x80
	}
	switch {
	case len(b) < 126:
		head[1] |= byte(len(b))
	case len(b) <= 0xFFFF:
		head[1] |= 126
		head = binary.BigEndian.AppendUint16(head, uint16(len(b)))
	default:
		head[1] |= 127
		head = binary.BigEndian.AppendUint64(head, uint64(len(b)))
	}
	mask := []byte{1, 2, 3, 4}
	frame := append(head, mask...)
	for i, c := range b {
		frame = append(frame, c^mask[i%4])
	}
	_, err := w.Conn.Write(frame)
	return err
}

// Read returns the next bytes of binary frames. A close frame is the end; a text frame is an error.
func (w *WebSocket) Read(b []byte) (int, error) {
	for {
		if len(w.data) > 0 {
			n := copy(b, w.data)
			w.data = w.data[n:]
			return n, nil
		}
		if w.done != nil {
			return 0, w.done
		}
		if !w.frame() {
			var raw [4096]byte
			n, err := w.Conn.Read(raw[:])
			w.in = append(w.in, raw[:n]...)
			if n == 0 && err != nil {
				return 0, err // after a deadline the next Read goes on
			}
		}
	}
}

// frame takes one whole frame from in.
func (w *WebSocket) frame() bool {
	if len(w.in) < 2 {
		return false
	}
	head, n := 2, int(w.in[1])
	switch n {
	case 126:
		if head = 4; len(w.in) < head {
			return false
		}
		n = int(binary.BigEndian.Uint16(w.in[2:]))
	case 127:
		if head = 10; len(w.in) < head {
			return false
		}
		n = int(binary.BigEndian.Uint64(w.in[2:]))
	}
	if n >= 128 && head == 2 {
		w.done = errors.New("a server masks its frames")
		return true
	}
	if len(w.in) < head+n {
		return false
	}
	body := w.in[head : head+n]
	switch opcode := w.in[0] & 0x0F; opcode {
	case 0, FrameBinary:
		w.data = append(w.data, body...)
	case FrameClose:
		w.done = io.EOF
	case FramePing:
		_ = w.WriteFrame(FramePong, true, body)
	case FramePong:
	default:
		w.done = fmt.Errorf("frame with opcode %d", opcode)
	}
	w.in = w.in[head+n:]
	return true
}
