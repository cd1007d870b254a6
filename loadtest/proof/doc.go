// Package proof holds the tests of the whole program: the real binary runs as a child process, a fleet of numbered
// messages loads it, and it is killed, stopped, or left without its upstream meanwhile. Each acknowledged message has to
// be found again, at a persistent subscriber and in Kafka.
//
// The tests take some seconds each. FOREBAY_CRASH=long (make crash) makes them long.
package proof
