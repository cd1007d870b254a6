package kafkatest

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Secure gives the brokers two more listeners: SSL, which wants a client certificate of ClientCA, and SASL_SSL, where PLAIN,
// SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER (unsigned tokens) log in. Only those that connect to PLAINTEXT may do everything; all
// others have no rights until an ACL grants them.
type Secure struct {
	ServerFile string            // key and chain of the brokers; read at their start
	ClientCA   string            // file
	Users      map[string]string // passwords of PLAIN and SCRAM
}

// The listeners of Secure.
const (
	SSL     = "SSL"
	SASLSSL = "SASL_SSL"
)

// SecureAddr is the node's listener SSL or SASLSSL.
func (n *Node) SecureAddr(listener string) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(n.secure[listener]))
}

// properties are what s adds to those of node n, whose own listeners are given.
func (s *Secure) properties(n *Node, listeners, advertised string) map[string]string {
	more := fmt.Sprintf(",SSL://%s,SASL_SSL://%s", n.SecureAddr(SSL), n.SecureAddr(SASLSSL))
	login := "org.apache.kafka.common.security."
	var users strings.Builder
	for name, password := range s.Users {
		fmt.Fprintf(&users, " user_%s=%q", name, password)
	}
	return map[string]string{
		"listeners":                      listeners + more,
		"advertised.listeners":           advertised + more,
		"listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL",
		"inter.broker.listener.name":     "PLAINTEXT",
		"authorizer.class.name":          "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users":                    "User:ANONYMOUS",
		"ssl.keystore.type":              "PEM",
		"ssl.keystore.location":          s.ServerFile,
		"ssl.truststore.type":            "PEM",
		"ssl.truststore.location":        s.ClientCA,
		"sasl.enabled.mechanisms":        "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",

		"listener.name.ssl.ssl.client.auth":                            "required",
		"listener.name.sasl_ssl.plain.sasl.jaas.config":                login + "plain.PlainLoginModule required" + users.String() + ";",
		"listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config":        login + "scram.ScramLoginModule required;",
		"listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config":        login + "scram.ScramLoginModule required;",
		"listener.name.sasl_ssl.oauthbearer.sasl.jaas.config":          login + `oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";`,
		"listener.name.sasl_ssl.oauthbearer.connections.max.reauth.ms": "3600000", // a session ends with its token
	}
}

// format are the arguments of the storage tool that make the users of SCRAM.
func (s *Secure) format() []string {
	var args []string
	for name, password := range s.Users {
		for _, m := range []string{"256", "512"} {
			args = append(args, "--add-scram", fmt.Sprintf("SCRAM-SHA-%s=[name=%s,password=%s]", m, name, password))
		}
	}
	return args
}
