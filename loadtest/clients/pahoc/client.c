/* Eclipse Paho for C as a client of the matrix: requests on standard input, answers and messages on standard output, as
 * process_test.go describes. One process has one session. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "MQTTClient.h"

enum { max_words = 40, max_line = 8192, wait_ms = 10000 };

static pthread_mutex_t out = PTHREAD_MUTEX_INITIALIZER;
static MQTTClient client;
static int number;
static int v5;

/* say prints one line; answers and messages come from two threads. */
static void say(const char *format, ...) {
	va_list args;
	va_start(args, format);
	pthread_mutex_lock(&out);
	vprintf(format, args);
	putchar('\n');
	fflush(stdout);
	pthread_mutex_unlock(&out);
	va_end(args);
}

struct request {
	int count;
	char *words[max_words];
};

/* value returns the value of the nth word with that name, NULL when there is none. */
static const char *value(const struct request *r, const char *name, int nth) {
	size_t len = strlen(name);
	for (int i = 0; i < r->count; i++)
		if (strncmp(r->words[i], name, len) == 0 && r->words[i][len] == '=' && nth-- == 0)
			return r->words[i] + len + 1;
	return NULL;
}

static int number_of(const struct request *r, const char *name) {
	const char *v = value(r, name, 0);
	return v ? atoi(v) : 0;
}

static size_t append(char *to, size_t at, const char *name, const char *v, int len) {
	return at + snprintf(to + at, max_line - at, " %s=%.*s", name, len, v);
}

static int arrived(void *context, char *topic, int topic_len, MQTTClient_message *m) {
	char line[max_line];
	size_t at = append(line, 0, "topic", topic, topic_len > 0 ? topic_len : (int)strlen(topic));
	if (m->payloadlen > 0)
		at = append(line, at, "payload", m->payload, m->payloadlen);
	for (int i = 0; i < m->properties.count; i++) {
		const MQTTProperty *p = &m->properties.array[i];
		const MQTTLenString *s = &p->value.data;
		switch (p->identifier) {
		case MQTTPROPERTY_CODE_CONTENT_TYPE:
			at = append(line, at, "content", s->data, s->len);
			break;
		case MQTTPROPERTY_CODE_RESPONSE_TOPIC:
			at = append(line, at, "response", s->data, s->len);
			break;
		case MQTTPROPERTY_CODE_CORRELATION_DATA:
			at = append(line, at, "correlation", s->data, s->len);
			break;
		case MQTTPROPERTY_CODE_USER_PROPERTY:
			at = append(line, at, "user", s->data, s->len);
			at += snprintf(line + at, max_line - at, ":%.*s", p->value.value.len, p->value.value.data);
			break;
		default:
			break;
		}
	}
	say("msg %d qos=%d retain=%d%s", number, m->qos, m->retained, line);
	MQTTClient_freeMessage(&m);
	MQTTClient_free(topic);
	return 1;
}

static int subscribe(const char *filter, int qos) {
	if (!v5)
		return MQTTClient_subscribe(client, filter, qos);
	MQTTResponse r = MQTTClient_subscribe5(client, filter, qos, NULL, NULL);
	int rc = r.reasonCode;
	MQTTResponse_free(r);
	return rc == qos ? 0 : rc ? rc : -1;
}

static void open_session(const struct request *r) {
	const char *url = value(r, "url", 0);
	int ws = strncmp(url, "ws", 2) == 0;
	v5 = number_of(r, "version") == 5;

	MQTTClient_createOptions create = MQTTClient_createOptions_initializer;
	create.MQTTVersion = v5 ? MQTTVERSION_5 : MQTTVERSION_3_1_1;
	int rc = MQTTClient_createWithOptions(&client, url, value(r, "id", 0), MQTTCLIENT_PERSISTENCE_NONE, NULL, &create);
	if (rc == MQTTCLIENT_SUCCESS)
		rc = MQTTClient_setCallbacks(client, NULL, NULL, arrived, NULL);
	if (rc != MQTTCLIENT_SUCCESS) {
		say("err %d create: %d", number, rc);
		return;
	}
	MQTTClient_connectOptions four = MQTTClient_connectOptions_initializer, four_ws = MQTTClient_connectOptions_initializer_ws;
	MQTTClient_connectOptions five = MQTTClient_connectOptions_initializer5, five_ws = MQTTClient_connectOptions_initializer5_ws;
	MQTTClient_connectOptions o = v5 ? (ws ? five_ws : five) : (ws ? four_ws : four);
	MQTTClient_willOptions will = MQTTClient_willOptions_initializer;
	o.connectTimeout = wait_ms / 1000;
	if (v5)
		o.cleanstart = number_of(r, "clean");
	else {
		o.MQTTVersion = MQTTVERSION_3_1_1;
		o.cleansession = number_of(r, "clean");
	}
	if (value(r, "will", 0)) {
		will.topicName = value(r, "will", 0);
		will.message = value(r, "willpayload", 0);
		will.qos = number_of(r, "willqos");
		o.will = &will;
	}

	if (v5) {
		MQTTProperties props = MQTTProperties_initializer;
		MQTTProperty expiry = {.identifier = MQTTPROPERTY_CODE_SESSION_EXPIRY_INTERVAL, .value.integer4 = number_of(r, "expiry")};
		MQTTProperties_add(&props, &expiry);
		MQTTProperties will_props = MQTTProperties_initializer;
		MQTTResponse answer = MQTTClient_connect5(client, &o, &props, o.will ? &will_props : NULL);
		rc = answer.reasonCode;
		MQTTResponse_free(answer);
		MQTTProperties_free(&props);
	} else
		rc = MQTTClient_connect(client, &o);
	if (rc != MQTTCLIENT_SUCCESS) {
		say("err %d connect: %d", number, rc);
		return;
	}
	const char *s;
	for (int i = 0; (s = value(r, "sub", i)); i++) {
		if ((rc = subscribe(s + 2, s[0] - '0')) != 0) {
			say("err %d subscribe %s: %d", number, s + 2, rc);
			return;
		}
	}
	if (v5)
		say("ok %d", number); /* it does not tell Session Present of MQTT 5 */
	else
		say("ok %d present=%d", number, o.returned.sessionPresent);
}

static void add_string(MQTTProperties *props, enum MQTTPropertyCodes code, const char *v) {
	if (!v)
		return;
	MQTTProperty p = {.identifier = code};
	p.value.data.data = (char *)v;
	p.value.data.len = strlen(v);
	MQTTProperties_add(props, &p);
}

static void publish(const struct request *r) {
	MQTTClient_message m = MQTTClient_message_initializer;
	const char *payload = value(r, "payload", 0);
	m.payload = (void *)(payload ? payload : "");
	m.payloadlen = strlen(m.payload);
	m.qos = number_of(r, "qos");
	m.retained = number_of(r, "retain");
	const char *topic = value(r, "topic", 0), *user;
	MQTTClient_deliveryToken token = 0;
	int rc;
	if (v5) {
		add_string(&m.properties, MQTTPROPERTY_CODE_CONTENT_TYPE, value(r, "content", 0));
		add_string(&m.properties, MQTTPROPERTY_CODE_RESPONSE_TOPIC, value(r, "response", 0));
		add_string(&m.properties, MQTTPROPERTY_CODE_CORRELATION_DATA, value(r, "correlation", 0));
		for (int i = 0; (user = value(r, "user", i)); i++) {
			const char *colon = strchr(user, ':');
			MQTTProperty p = {.identifier = MQTTPROPERTY_CODE_USER_PROPERTY};
			p.value.data.data = (char *)user;
			p.value.data.len = colon - user;
			p.value.value.data = (char *)colon + 1;
			p.value.value.len = strlen(colon + 1);
			MQTTProperties_add(&m.properties, &p);
		}
		MQTTResponse answer = MQTTClient_publishMessage5(client, topic, &m, &token);
		rc = answer.reasonCode;
		MQTTResponse_free(answer);
		MQTTProperties_free(&m.properties);
	} else
		rc = MQTTClient_publishMessage(client, topic, &m, &token);
	if (rc == MQTTCLIENT_SUCCESS && m.qos > 0)
		rc = MQTTClient_waitForCompletion(client, token, wait_ms);
	if (rc != MQTTCLIENT_SUCCESS)
		say("err %d publish: %d", number, rc);
	else
		say("ok %d", number);
}

static void close_session(void) {
	int rc = v5 ? MQTTClient_disconnect5(client, 1000, MQTTREASONCODE_SUCCESS, NULL) : MQTTClient_disconnect(client, 1000);
	if (rc != MQTTCLIENT_SUCCESS)
		say("err %d disconnect: %d", number, rc);
	else
		say("ok %d", number);
}

int main(void) {
	char line[max_line];
	while (fgets(line, sizeof line, stdin)) {
		struct request r = {0};
		char *kind = strtok(line, " \n");
		char *n = strtok(NULL, " \n");
		if (!kind || !n)
			continue;
		number = atoi(n);
		for (char *w; r.count < max_words && (w = strtok(NULL, " \n"));)
			r.words[r.count++] = w;
		if (strcmp(kind, "open") == 0)
			open_session(&r);
		else if (strcmp(kind, "pub") == 0)
			publish(&r);
		else
			close_session();
	}
	return 0;
}
