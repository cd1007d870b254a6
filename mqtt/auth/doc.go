// Package auth decides who may come in and what they may do. It knows no connections: a Request goes in, an Identity or a
// refusal comes out, and an identity is asked about topics through its Permissions. The engine asks; nothing here calls back.
//
// # Who
//
// A Chain is a list of methods, tried in the order of the configuration: password (a file of argon2id hashes), certificate (of
// a verified TLS client), jwt (signed by a key of a JWKS), http (a hook of the operator) and anonymous. A method accepts, or it
// passes on; what nobody accepts is refused. Only the hook can refuse for all that follow. A refusal is the same error
// whatever was wrong: unknown user, wrong password, expired token. It costs the same too: an unknown user is hashed like a
// known one.
//
// SCRAM-SHA-256 is the method of the enhanced authentication (MQTT 5, 4.12), on the same file; see Exchange.
//
// Three things bound what strangers cost. Hashing is admitted by a gate of so much memory and so many at once, with a queue
// that has a deadline. Failures are slowed by source address and by user in tables of fixed size. Answers of the hook, verified
// passwords and keys are cached within bounds.
//
// # What
//
// An ACL is a file of ordered rules, see ParseACL. For a client it is resolved into Permissions: the rules that are about this
// client, with %u, %c and %{claim} replaced. Publishing is checked by topic name, subscribing by containment of filters, such
// that a subscription is granted only if each topic that it could match would be allowed; see Permissions.
//
// A substituted value never widens a rule. When it is empty, or holds +, #, / or NUL, or would turn the filter into one of the
// $ topics, an allow rule does not match, and a deny rule denies all that it could have meant.
//
// # Files
//
// Each file is replaced as a whole by its Reload: the new content is read completely, and if there is a fault in it, the old
// one stays in force and the error names file and line. Readers see one snapshot or the other.
package auth
