// Command versus measures brokers side by side: the same load on each in turns, several rounds in one run, medians, ratios
// to the first broker named. The absolute rates of a small machine wander; the ratios hold.
//
// It speaks MQTT 5 with hand-made packets, so that the load generator costs little beside what it measures. It checks
// nothing but counts: proof that nothing is lost is the work of loadtest.
package main
