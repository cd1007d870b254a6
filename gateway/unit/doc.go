// Package unit holds the kinds of value that an operator writes with their unit: sizes ("10GiB"), durations ("7d") and
// rates ("5MiB/s").
//
// A bare number is refused, because 5 does not say whether it is bytes or megabytes, seconds or minutes. The one exception
// is 0, which is the same in every unit. Each kind reads and writes text, so that a value that was read prints as text that
// reads back as the same value.
package unit
