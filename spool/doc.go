// Package spool is the durable, partitioned log between the devices and everything that reads them.
package spool
