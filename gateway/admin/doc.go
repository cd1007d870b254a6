// Package admin serves what operators and their tools ask a running gateway over HTTP: is it alive, is it ready, what does it
// count. It listens on a loopback address unless the configuration says otherwise in so many words, because it has no
// authentication yet.
package admin
