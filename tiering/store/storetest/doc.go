// Package storetest is the contract that every store.Store keeps: a new one is done when Run passes.
package storetest
