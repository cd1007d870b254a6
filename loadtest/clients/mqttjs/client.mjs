// MQTT.js as a client of the matrix: requests on standard input, answers and messages on standard output, as
// process_test.go describes.
import readline from "node:readline";
import mqtt from "mqtt";

const clients = new Map();
const say = (...words) => process.stdout.write(words.filter((w) => w !== "").join(" ") + "\n");
const word = (name, value) => (value === undefined || value === "" ? "" : `${name}=${value}`);

// Words of a request: the last value of each name, and lists for sub and user.
function parse(words) {
  const o = { sub: [], user: [] };
  for (const w of words) {
    const at = w.indexOf("=");
    const [name, value] = [w.slice(0, at), w.slice(at + 1)];
    if (Array.isArray(o[name])) o[name].push(value);
    else o[name] = value;
  }
  return o;
}

function open(number, o) {
  const v5 = o.version === "5";
  const fail = (err) => say("err", number, String(err));
  const client = mqtt.connect(o.url, {
    clientId: o.id,
    protocolVersion: Number(o.version),
    clean: o.clean === "1",
    reconnectPeriod: 0,
    connectTimeout: 10_000,
    resubscribe: false,
    properties: v5 && o.expiry !== "0" ? { sessionExpiryInterval: Number(o.expiry) } : undefined,
    will: o.will && { topic: o.will, payload: o.willpayload, qos: Number(o.willqos), retain: false },
  });
  clients.set(number, client);
  client.once("error", fail);
  client.on("message", (topic, payload, packet) => {
    const p = packet.properties ?? {};
    const user = Object.entries(p.userProperties ?? {}).flatMap(([k, v]) => [v].flat().map((one) => `user=${k}:${one}`));
    say("msg", number, `topic=${topic}`, word("payload", payload.toString()), `qos=${packet.qos}`, `retain=${packet.retain ? 1 : 0}`,
      ...user, word("content", p.contentType), word("response", p.responseTopic), word("correlation", p.correlationData?.toString()));
  });
  client.once("connect", (connack) => {
    client.off("error", fail);
    client.on("error", (err) => console.error(number, String(err)));
    const done = (err) => (err ? fail(err) : say("ok", number, `present=${connack.sessionPresent ? 1 : 0}`));
    if (o.sub.length === 0) return done();
    const filters = {};
    for (const s of o.sub) filters[s.slice(2)] = { qos: Number(s[0]) };
    client.subscribe(filters, done);
  });
}

function publish(number, o) {
  const user = {};
  for (const pair of o.user) {
    const [name, value] = pair.split(":");
    (user[name] ??= []).push(value);
  }
  const properties = {
    ...(o.content && { contentType: o.content }),
    ...(o.response && { responseTopic: o.response }),
    ...(o.correlation && { correlationData: Buffer.from(o.correlation) }),
    ...(o.user.length && { userProperties: user }),
  };
  const options = { qos: Number(o.qos), retain: o.retain === "1", properties };
  clients.get(number).publish(o.topic, o.payload ?? "", options, (err) => (err ? say("err", number, String(err)) : say("ok", number)));
}

const lines = readline.createInterface({ input: process.stdin });
lines.on("line", (line) => {
  const [request, number, ...words] = line.trim().split(/\s+/);
  if (request === "open") open(number, parse(words));
  else if (request === "pub") publish(number, parse(words));
  else clients.get(number).end(false, {}, () => say("ok", number));
});
lines.on("close", () => process.exit(0));
