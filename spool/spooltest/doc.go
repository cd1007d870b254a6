// Package spooltest opens spools for tests, with small files, and verifies their directory when the test ends.
package spooltest
