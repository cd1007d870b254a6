package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"

	"cloud.google.com/go/storage"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	gcaws "gocloud.dev/aws"
	"gocloud.dev/blob"
	"gocloud.dev/blob/azureblob"
	"gocloud.dev/blob/gcsblob"
	"gocloud.dev/blob/s3blob"
	"gocloud.dev/gcp"
	"golang.org/x/oauth2/google"
	"google.golang.org/api/option"
)

// openS3 opens a bucket of S3 or of something that speaks it. The chain is that of the AWS SDK: environment, ~/.aws, web identity,
// container, instance. A credentials file has the format of ~/.aws/credentials.
func openS3(ctx context.Context, u *url.URL, credentials []byte) (*blob.Bucket, error) {
	q := u.Query()
	pathStyle, err := take(q, "use_path_style")
	if err != nil {
		return nil, err
	}
	cfg, err := gcaws.V2ConfigFromURLParams(ctx, q)
	if err != nil {
		return nil, err
	}
	if credentials != nil {
		if cfg.Credentials, err = sharedCredentials(ctx, q.Get("profile"), credentials); err != nil {
			return nil, err
		}
	}
	client := s3.NewFromConfig(cfg, func(o *s3.Options) { o.UsePathStyle = pathStyle })
	return s3blob.OpenBucket(ctx, client, u.Host, &s3blob.Options{RequestChecksumCalculation: cfg.RequestChecksumCalculation})
}

// sharedCredentials reads one profile. The SDK wants a file of its own name: what was read is what is used.
func sharedCredentials(ctx context.Context, profile string, b []byte) (aws.CredentialsProvider, error) {
	f, err := os.CreateTemp("", "forebay-credentials-*")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if profile == "" {
		profile = "default"
	}
	shared, err := config.LoadSharedConfigProfile(ctx, profile, func(o *config.LoadSharedConfigOptions) {
		o.CredentialsFiles, o.ConfigFiles = []string{f.Name()}, []string{}
	})
	if err != nil {
		return nil, fmt.Errorf("%w: credentials_file: %w", ErrDenied, err)
	}
	got := shared.Credentials
	if !got.HasKeys() {
		return nil, fmt.Errorf("%w: credentials_file: profile %q has no aws_access_key_id and aws_secret_access_key", ErrDenied, profile)
	}
	got.Source = "credentials_file"
	return aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return got, nil }), nil
}

// take takes a parameter that is true or false out of q.
func take(q url.Values, name string) (bool, error) {
	v := q.Get(name)
	q.Del(name)
	if v == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		return false, fmt.Errorf("parameter %s: %q is neither true nor false", name, v)
	}
	return b, nil
}

// openGCS opens a bucket of Google Cloud Storage. The chain is Application Default Credentials; a credentials file is the JSON of a
// service account or of workload identity.
func openGCS(ctx context.Context, u *url.URL, credentials []byte) (*blob.Bucket, error) {
	q := u.Query()
	anonymous, err := take(q, "anonymous")
	if err != nil {
		return nil, err
	}
	var options []option.ClientOption
	if e := q.Get("endpoint"); e != "" {
		options = append(options, option.WithEndpoint(e))
	}
	q.Del("endpoint")
	for name := range q {
		return nil, fmt.Errorf("parameter %s: want endpoint or anonymous", name)
	}
	o := &gcsblob.Options{ClientOptions: options}
	if anonymous {
		return patient(gcsblob.OpenBucket(ctx, gcp.NewAnonymousHTTPClient(gcp.DefaultTransport()), u.Host, o))
	}
	// The tokens outlive the request that opened the bucket.
	ctx = context.WithoutCancel(ctx)
	const scope = "https://www.googleapis.com/auth/devstorage.read_write"
	var found *google.Credentials
	if credentials != nil {
		//lint:ignore SA1019 it is the operator's own file, of any of its kinds
		found, err = google.CredentialsFromJSON(ctx, credentials, scope)
	} else {
		found, err = google.FindDefaultCredentials(ctx, scope)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDenied, err)
	}
	client, err := gcp.NewHTTPClient(gcp.DefaultTransport(), gcp.CredentialsTokenSource(found))
	if err != nil {
		return nil, err
	}
	return patient(gcsblob.OpenBucket(ctx, client, u.Host, o))
}

// patient has the client of Google try as often as those of the others: it would try for as long as nobody ends it, and tell nobody.
func patient(b *blob.Bucket, err error) (*blob.Bucket, error) {
	var client *storage.Client
	if err == nil && b.As(&client) {
		client.SetRetry(storage.WithMaxAttempts(3))
	}
	return b, err
}

// openAzure opens a container of Azure Blob Storage. The chain is the environment (AZURE_STORAGE_ACCOUNT, AZURE_STORAGE_KEY,
// AZURE_STORAGE_SAS_TOKEN, AZURE_STORAGE_CONNECTION_STRING) and then the Azure identities. A credentials file has such lines, and
// nothing but what it says is used.
func openAzure(ctx context.Context, u *url.URL, credentials []byte) (*blob.Bucket, error) {
	plain := &url.URL{Scheme: u.Scheme, Host: u.Host, RawQuery: u.RawQuery}
	if credentials != nil {
		return azureFromFile(ctx, plain, credentials)
	}
	return blob.OpenBucket(ctx, plain.String()) // azureblob has registered its scheme
}

// azureFromFile opens a container with the lines of a credentials file.
func azureFromFile(ctx context.Context, u *url.URL, credentials []byte) (*blob.Bucket, error) {
	vars := lines(credentials)
	if s := vars["AZURE_STORAGE_CONNECTION_STRING"]; s != "" {
		client, err := container.NewClientFromConnectionString(s, u.Host, nil)
		if err != nil {
			return nil, fmt.Errorf("%w: credentials_file: %w", ErrDenied, err)
		}
		return azureblob.OpenBucket(ctx, client, nil)
	}
	q := u.Query()
	o := &azureblob.ServiceURLOptions{AccountName: vars["AZURE_STORAGE_ACCOUNT"], SASToken: strings.TrimPrefix(vars["AZURE_STORAGE_SAS_TOKEN"], "?")}
	for name := range q {
		switch name {
		case "storage_account":
			o.AccountName = q.Get(name)
		case "domain":
			o.StorageDomain = q.Get(name)
		case "protocol":
			o.Protocol = q.Get(name)
		default:
			return nil, fmt.Errorf("parameter %s: want storage_account, domain or protocol", name)
		}
	}
	key := vars["AZURE_STORAGE_KEY"]
	if key != "" {
		o.SASToken = ""
	}
	service, err := azureblob.NewServiceURL(o)
	if err != nil {
		return nil, err
	}
	base, query, _ := strings.Cut(string(service), "?")
	at, err := url.JoinPath(base, u.Host)
	if err != nil {
		return nil, err
	}
	var client *container.Client
	switch {
	case key != "":
		var cred *container.SharedKeyCredential
		if cred, err = container.NewSharedKeyCredential(o.AccountName, key); err == nil {
			client, err = container.NewClientWithSharedKeyCredential(at, cred, nil)
		}
	case query != "":
		client, err = container.NewClientWithNoCredential(at+"?"+query, nil)
	default:
		err = errors.New("has no AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CONNECTION_STRING")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: credentials_file: %w", ErrDenied, err)
	}
	return azureblob.OpenBucket(ctx, client, nil)
}

// lines reads NAME=VALUE, as env files have it.
func lines(b []byte) map[string]string {
	vars := map[string]string{}
	for line := range bytes.Lines(b) {
		name, value, ok := strings.Cut(strings.TrimSpace(string(line)), "=")
		if ok && !strings.HasPrefix(name, "#") {
			vars[strings.TrimPrefix(strings.TrimSpace(name), "export ")] = strings.Trim(strings.TrimSpace(value), `"'`)
		}
	}
	return vars
}
