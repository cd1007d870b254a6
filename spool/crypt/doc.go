// Package crypt encrypts what the spool writes, with AES-256-GCM and keys that an operator keeps in files.
//
// # Keys
//
// A key file holds a master key of 32 bytes, known by its ID. Nothing is encrypted with a master key itself: each file of
// the spool has a random salt, and its own key is HKDF-SHA256(master key, salt, purpose). Beside the salt, the file keeps the
// ID and a check value, 8 bytes derived the same way: a wrong key is told from damage before anything is decrypted.
//
// # Nonces
//
// A nonce must never come twice with one key. A [Cipher] counts: 8 random bytes, drawn when the file is opened, and a counter of
// 4 bytes that goes up with each Seal, also with those whose transaction is rolled back; after 2^32 the 8 bytes are drawn
// anew. So neither a crash nor a restored copy brings a nonce back. What has a number of its own that is used once for
// each file key (the LSN of a journal frame) uses that instead: SealAt.
//
// # What it does not do
//
// Sizes, times, offsets, stream names and the number of records stay readable. Who can change files can put back an
// older version of a whole file. Files that were written before encryption was turned on stay as they are until
// retention removes them.
package crypt
