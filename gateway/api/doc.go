// Package api is what the admin listener of a running gateway answers below /api/v1, and the client for it: the same
// questions that tools ask of the files of a stopped one (spool.Inspector).
//
// # Who may ask
//
// The answers show what devices said, which the files of the data directory keep from other users of the machine. So each
// request carries the token that the gateway leaves in the file admin_token of its data directory at its first start: who
// can read the directory can ask the gateway.
//
// # Bounds
//
// Every answer is a page of bounded size, made in memory before it is sent: a slow client holds no segment. Few requests
// run at the same time, more are answered with 503.
package api
