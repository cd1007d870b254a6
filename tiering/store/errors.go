package store

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"gocloud.dev/gcerrors"
)

// fault decides what an error of a bucket means. What it does not know may pass by itself: a network, a 503, a throttle.
func (c *cloud) fault(op, key string, err error) error {
	switch code := gcerrors.Code(err); {
	case errors.Is(err, context.DeadlineExceeded):
	case contains(err, "NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist", "bucket doesn't exist"), op == "put" && code == gcerrors.NotFound:
		err = fmt.Errorf("%w: %w", ErrNoBucket, err) // before NotFound, which the codes cannot tell from it
	case code == gcerrors.PermissionDenied, denied(err): // before NotFound, which is what a refusal of Google's is called, too
		c.forget()
		err = fmt.Errorf("%w: %w", ErrDenied, err)
	case code == gcerrors.NotFound:
		err = fmt.Errorf("%w: %w", ErrNotExist, err)
	case code == gcerrors.Canceled:
		err = fmt.Errorf("%w: %w", context.Canceled, err)
	}
	return fmt.Errorf("%s %s: %w", op, key, err)
}

// denied finds what the three clouds say about credentials that are missing, expired or wrong; gocloud has no code for most.
func denied(err error) bool {
	return contains(err,
		"ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "InvalidToken", "RequestTimeTooSkewed", // S3
		"XAdminUserNotFound",                                   // what versitygw calls a key that it does not know
		"failed to refresh cached credentials", "get identity", // S3: the chain found none
		"AuthenticationFailed", "AuthorizationFailure", "AuthorizationPermissionMismatch", "DefaultAzureCredential", // Azure
		"invalid_grant", "oauth2:", "could not find default credentials", "Error 401", "Error 403", "response code 401", "response code 403", // Google
	)
}

func contains(err error, any ...string) bool {
	text := err.Error()
	for _, s := range any {
		if strings.Contains(text, s) {
			return true
		}
	}
	return false
}
