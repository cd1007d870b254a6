package config

import (
	"regexp"
	"slices"
	"strings"
)

// envPrefix starts every variable that sets a key: FOREBAY_SPOOL_MAX_SIZE sets spool.max_size.
const envPrefix = "FOREBAY_"

// EnvFile names the configuration file when the command line does not.
const EnvFile = envPrefix + "CONFIG"

// container are the variables that Kubernetes and Docker put into every container for a service whose name starts with forebay:
// FOREBAY_SERVICE_HOST, FOREBAY_MQTT_PORT=tcp://10.0.0.1:1883 and more.
var (
	container     = regexp.MustCompile(`^FOREBAY_(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)
	containerPort = regexp.MustCompile(`^FOREBAY_(.+_)?PORT=(tcp|udp|sctp)://`) // told by its value: FOREBAY_ADMIN_PORT=9600 is a mistake
	ourOwn        = regexp.MustCompile(`^(FOREBAY_CONFIG|FOREBAY_CRASH|FOREBAY_TEST_.+)$`)
)

// foreign says whether a variable that starts with our prefix is not meant to set a key: EnvFile, those of containers, and what
// our own tests are told.
func foreign(name, value string) bool {
	return ourOwn.MatchString(name) || container.MatchString(name) || containerPort.MatchString(name+"="+value)
}

// EnvName is the variable that sets the key at path.
func EnvName(path string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

// environment checks the variables of environ that start with our prefix. It returns the values to merge, by variable, and a
// fault for each one that sets nothing, because a misspelt variable that is silently ignored is a default that nobody chose.
// An empty variable counts as not set, as compose files pass those.
func environment(environ []string) (map[string]any, Faults) {
	settable := map[string]*Key{}
	Keys().settable(func(k *Key) { settable[EnvName(k.Path)] = k })
	inFile := map[string]*Key{}
	Keys().Walk(func(k *Key) { inFile[EnvName(strings.ReplaceAll(k.Path, "[]", ""))] = k })

	values := map[string]any{}
	var faults Faults
	for _, entry := range environ {
		name, text, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, envPrefix) || foreign(name, text) {
			continue
		}
		f := Fault{From: "environment " + name}
		k, ok := settable[name]
		switch other := inFile[name]; {
		case !ok && other != nil && other.Kind == Section && !strings.Contains(other.Path, "[]"):
			f.Key, f.Problem = other.Path, "is a section: set the keys below it, such as "+EnvName(join(other.Path, other.Keys[0].Name))
		case !ok && other != nil:
			f.Key, f.Problem = other.Path, "lists of objects can only be set in the file"
		case !ok:
			f.Problem = unknownVariable(name, settable)
		case text == "":
			continue
		default:
			v, err := fromText(k, text)
			if err == nil {
				values[name] = v
				continue
			}
			f.Key, f.Problem = k.Path, err.Error()
		}
		faults = append(faults, f)
	}
	return values, faults
}

func unknownVariable(name string, settable map[string]*Key) string {
	names := make([]string, 0, len(settable))
	for n := range settable {
		names = append(names, n)
	}
	slices.Sort(names)
	if near := Nearest(name, names); near != "" {
		return "sets no key (did you mean " + near + "?)"
	}
	return "sets no key: the name is " + envPrefix + " and the path of the key, such as " + EnvName("spool.max_size")
}

// fromText reads text from outside of the file as the value of k: one value, or several with commas in between.
func fromText(k *Key, text string) (any, error) {
	if k.Kind == Scalar {
		return read(k.Type, text)
	}
	out := []any{}
	if strings.TrimSpace(text) == "" {
		return out, nil
	}
	for item := range strings.SplitSeq(text, ",") {
		v, err := read(k.Type, strings.TrimSpace(item))
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}
