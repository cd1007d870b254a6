// Package store is object storage behind one small contract: put, get, list, delete, and make once.
//
// A Store is a directory, which this package writes itself so that every object is synced before it has its name, or a bucket of
// S3 (and MinIO, R2, Ceph), Google Cloud Storage or Azure Blob, through gocloud.dev/blob. The URL chooses:
//
//	file:///var/lib/forebay/cold
//	s3://bucket/prefix?region=eu-central-1
//	s3://bucket/prefix?endpoint=https://minio.example:9000&use_path_style=true&region=us-east-1
//	gs://bucket/prefix
//	azblob://container/prefix?storage_account=name
//
// Everything in an object is there when its name is: Put is atomic in every store. IfAbsent makes one object of two writers' that
// meet, which is all that the manifest and the owner marker need.
package store
