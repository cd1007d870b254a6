package main

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/mqtt/auth"
)

func newACL() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "acl",
		Short: "Check and explain the rules of an ACL file",
		Args:  onlyCommands,
		RunE:  help,

		SuggestionsMinimumDistance: 2,
	}
	cmd.AddCommand(newACLTest(), newACLCheck())
	return cmd
}

func readACL(name string) (*auth.ACL, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return auth.ParseACL(name, data)
}

func newACLCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Say everything that is wrong with an ACL file",
		Args:  cobra.ExactArgs(1),
		RunE: does(func(cmd *cobra.Command, args []string) error {
			if _, err := readACL(args[0]); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: ok\n", args[0])
			return err
		}),
	}
}

// explained is the JSON result of acl test.
type explained struct {
	Allowed bool     `json:"allowed"`
	File    string   `json:"file,omitempty"`
	Line    int      `json:"line,omitempty"`
	Rule    string   `json:"rule,omitempty"`
	Why     string   `json:"why"`
	Skipped []string `json:"skipped"`
}

func newACLTest() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "test FILE --action ACTION [--topic TOPIC]",
		Short: "Say what a client may do, and which rule decides",
		Long: `Say what a client may do, and which rule of the ACL file decides. To publish, --topic is a topic name; to subscribe, a topic
filter, also with $share/{name}/ in front. Groups of the password file, a token or the hook are given with --group; those of
the ACL file are known. Exits with 0 when it is allowed, with 1 when it is denied.`,
		Example: `  forebay acl test acl --user ann --client press-7 --action publish --topic plant/press-7/state --qos 1
  forebay acl test acl --client dash --claim site=north --action subscribe --topic 'plant/+/state'`,
		Args: cobra.ExactArgs(1),
	}
	out := addOutput(cmd)
	flags := cmd.Flags()
	user := flags.String("user", "", "user name; empty is anonymous")
	client := flags.String("client", "", "client ID")
	listener := flags.String("listener", "", "name of the listener")
	groups := flags.StringArray("group", nil, "a group of the user; may be given more than once")
	claims := flags.StringArray("claim", nil, "a claim, name=value; may be given more than once")
	cert := flags.String("certificate", "", "file with the client's certificate (PEM)")
	action := flags.String("action", "", "connect, publish or subscribe")
	topic := flags.String("topic", "", "topic name or topic filter")
	qos := flags.Uint8("qos", 0, "0, 1 or 2")
	retain := flags.Bool("retain", false, "publish with retain")
	cmd.RunE = does(func(cmd *cobra.Command, args []string) error {
		wrong := func(format string, args ...any) error {
			return &askedError{err: fmt.Errorf(format, args...), code: exitUsage}
		}
		act, err := auth.ParseAction(*action)
		if err != nil {
			return wrong("--action: %w", err)
		}
		if *qos > 2 {
			return wrong("--qos %d is not 0, 1 or 2", *qos)
		}
		if err := auth.CheckTopic(act, *topic); err != nil {
			return wrong("--topic: %w", err)
		}
		id := &auth.Identity{User: *user, Groups: *groups, Claims: map[string][]string{}}
		for _, claim := range *claims {
			name, value, ok := strings.Cut(claim, "=")
			if !ok || name == "" {
				return wrong("--claim %q is not name=value", claim)
			}
			id.Claims[name] = append(id.Claims[name], value)
		}
		if *cert != "" {
			if id.Certificate, err = readCertificate(*cert); err != nil {
				return err
			}
		}
		acl, err := readACL(args[0])
		if err != nil {
			return err
		}
		d := acl.Explain(auth.Question{
			Subject: auth.Subject{ClientID: *client, Listener: *listener, Identity: id},
			Action:  act, Topic: *topic, QoS: *qos, Retain: *retain,
		})
		if err := printDecision(cmd.OutOrStdout(), out, d); err != nil {
			return err
		}
		if !d.Allowed {
			return &askedError{code: exitFailed}
		}
		return nil
	})
	return cmd
}

func printDecision(w io.Writer, out *output, d auth.Decision) error {
	if out.json {
		return writeJSON(w, explained{d.Allowed, d.File, d.Line, d.Rule, d.Why, append([]string{}, d.Skipped...)})
	}
	word := "denied"
	if d.Allowed {
		word = "allowed"
	}
	fmt.Fprintf(w, "%s: %s\n", word, d.Why)
	if d.File != "" {
		fmt.Fprintf(w, "%s:%d: %s\n", d.File, d.Line, d.Rule)
	}
	for _, s := range d.Skipped {
		fmt.Fprintf(w, "note: %s\n", s)
	}
	return nil
}

func readCertificate(name string) (*auth.CertificateInfo, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, fmt.Errorf("%s: holds no certificate in PEM", name)
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return auth.NewCertificateInfo(c), nil
}
