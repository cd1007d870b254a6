// Command versus measures brokers side by side: the same load on each in turns, several rounds in one run, medians, ratios
// to the first broker. The absolute rates of a small machine wander; the ratios hold.
//
// It speaks MQTT 5, and MQTT 3.1.1 with a broker that knows no other, with hand-made packets, so that the load generator costs
// little beside what it measures. It believes nothing: an acknowledgement counts when it belongs to a message in flight and is
// the one that is due, and each delivery carries the number of its message, so that what is lost, doubled or out of order shows.
package main
