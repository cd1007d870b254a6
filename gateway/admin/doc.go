// Package admin serves what operators and their tools ask a running gateway over HTTP: is it alive, is it ready, what does it
// count. It listens on a loopback address unless the configuration says otherwise in so many words. With TLS it is for a network that is not
// its own; who may know and do everything shows a token or a client certificate.
package admin
