// One MQTT.js client publishes, another receives: node roundtrip.mjs URL VERSION QOS TOPIC PAYLOAD
// Prints what arrived as one line of JSON and ends; exits 1 with the reason when nothing does within ten seconds.
import mqtt from "mqtt";

const [url, version, qos, topic, payload] = process.argv.slice(2);
const options = (name) => ({
  clientId: `${name}-${process.pid}`,
  protocolVersion: Number(version),
  reconnectPeriod: 0,
  connectTimeout: 5000,
});
const fail = (err) => {
  console.error(String(err));
  process.exit(1);
};
setTimeout(() => fail("nothing arrived within 10 s"), 10_000).unref();

const receiver = mqtt.connect(url, options("js-sub"));
receiver.on("error", fail);
receiver.on("message", (t, body, packet) => {
  console.log(JSON.stringify({
    topic: t,
    payload: body.toString(),
    qos: packet.qos,
    user: packet.properties?.userProperties ?? {},
    contentType: packet.properties?.contentType ?? "",
  }));
  receiver.end(true, () => process.exit(0));
});
receiver.on("connect", () => {
  receiver.subscribe(topic, { qos: Number(qos) }, (err) => {
    if (err) fail(err);
    const sender = mqtt.connect(url, options("js-pub"));
    sender.on("error", fail);
    sender.on("connect", () => {
      const properties = version === "5" ? { contentType: "text/plain", userProperties: { site: "north" } } : undefined;
      sender.publish(topic, payload, { qos: Number(qos), properties }, (err) => (err ? fail(err) : sender.end()));
    });
  });
});
