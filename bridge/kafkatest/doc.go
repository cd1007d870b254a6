// Package kafkatest runs a real Apache Kafka on 127.0.0.1 for tests: KRaft nodes from Maven artifacts, without a container
// engine. A test can kill, stop, pause and restart each node.
//
// The jars are fetched once with Maven into the directory named by FOREBAY_KAFKA_JARS, default .kafka/jars at the top of
// the module. It needs Java 17 or newer and mvn on the PATH. Nothing else in the product imports this package.
package kafkatest
