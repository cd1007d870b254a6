package kafka

import (
	"errors"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// ErrClosed means that the client is closed.
var ErrClosed = errors.New("kafka client is closed")

// Class is what an error means for the lane that met it.
type Class uint8

// The classes. Retry: the same messages may succeed later, unchanged. Shrink: the flight is too large, fewer messages may
// succeed; one alone that fails is poison. Poison: one of the messages can never succeed; halving the flight finds it.
// Fault: somebody has to change something; hold, alarm, and probe now and then. Dead: the producer is of no use any more and
// is built anew; the outcome of what was in the air is unknown.
const (
	Retry Class = iota
	Shrink
	Poison
	Fault
	Dead
)

// String is the class as metrics and logs name it.
func (c Class) String() string {
	return [...]string{"retry", "shrink", "poison", "fault", "dead"}[c]
}

// Classes are all classes, for metrics that exist at zero.
var Classes = []Class{Retry, Shrink, Poison, Fault, Dead}

// Verdict is what an error means.
type Verdict struct {
	Class  Class
	Reason string // from a fixed set: fit for a metric's label
	Hint   string // what an operator can do; empty when time will tell
	Err    error

	// Unknown says that the messages may have been written all the same.
	Unknown bool

	// Tries is how many times a Retry is tried before it is treated like Poison; 0 is for ever.
	Tries int

	topic topicAction
}

// topicAction is what has to happen to the client's picture of the topic before the next flight.
type topicAction uint8

const (
	keepTopic topicAction = iota
	refreshTopic
	// Drop the producer's state of it, once nothing of it is in the air. Only for a topic that is another one now: the
	// producer begins with sequence number 0 again, and a partition that knows the producer ID takes that for a repetition,
	// acknowledges it and writes nothing.
	purgeTopic
)

// verdicts is the table: what each error of a produce, of metadata, of a transaction and of making a topic means, and why. Errors
// that the producer retries for ever by itself (NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS, REQUEST_TIMED_OUT ...) reach a
// promise only when it gives up for another reason; they are here all the same, so that nothing depends on which errors those
// are. What the protocol has beside these is in elsewhere.
var verdicts = map[int16]Verdict{
	// Leadership moves, brokers come and go: the cluster repairs this.
	kerr.NotLeaderForPartition.Code:        {Class: Retry, Reason: "leader"},
	kerr.LeaderNotAvailable.Code:           {Class: Retry, Reason: "leader"},
	kerr.ReplicaNotAvailable.Code:          {Class: Retry, Reason: "leader"},
	kerr.BrokerNotAvailable.Code:           {Class: Retry, Reason: "leader"},
	kerr.FencedLeaderEpoch.Code:            {Class: Retry, Reason: "leader"},
	kerr.UnknownLeaderEpoch.Code:           {Class: Retry, Reason: "leader"},
	kerr.NewLeaderElected.Code:             {Class: Retry, Reason: "leader"},
	kerr.NotController.Code:                {Class: Retry, Reason: "leader"},
	kerr.RebootstrapRequired.Code:          {Class: Retry, Reason: "leader"},
	kerr.ListenerNotFound.Code:             {Class: Retry, Reason: "leader", Hint: "the partition's leader has no listener of the name that this address belongs to: look at the brokers' listeners"},
	kerr.NetworkException.Code:             {Class: Retry, Reason: "network"},
	kerr.CoordinatorLoadInProgress.Code:    {Class: Retry, Reason: "coordinator"},
	kerr.CoordinatorNotAvailable.Code:      {Class: Retry, Reason: "coordinator"},
	kerr.NotCoordinator.Code:               {Class: Retry, Reason: "coordinator"},
	kerr.ConcurrentTransactions.Code:       {Class: Retry, Reason: "coordinator"},
	kerr.TransactionCoordinatorFenced.Code: {Class: Retry, Reason: "coordinator"},
	kerr.KafkaStorageError.Code:            {Class: Retry, Reason: "storage", Hint: "a broker's log directory has failed: look at its disk"},
	kerr.LogDirNotFound.Code:               {Class: Retry, Reason: "storage", Hint: "a broker's log directory is gone: look at its disk"},
	kerr.ThrottlingQuotaExceeded.Code:      {Class: Retry, Reason: "quota", Hint: "a quota of the cluster slows this client down"},
	kerr.NotEnoughReplicas.Code:            {Class: Retry, Reason: "min_isr", Hint: minISR},
	kerr.NotEnoughReplicasAfterAppend.Code: {Class: Retry, Reason: "min_isr", Unknown: true, Hint: minISR},
	kerr.RequestTimedOut.Code:              {Class: Retry, Reason: "timeout", Unknown: true},

	// The broker lost track of the producer (retention, restart, an unclean leader). The producer takes a new epoch and
	// repeats; sequence numbers keep the order.
	kerr.OutOfOrderSequenceNumber.Code: {Class: Retry, Reason: "producer_reset"},
	kerr.UnknownProducerID.Code:        {Class: Retry, Reason: "producer_reset"},
	kerr.InvalidProducerIDMapping.Code: {Class: Retry, Reason: "producer_reset"},
	kerr.InvalidProducerEpoch.Code:     {Class: Retry, Reason: "producer_reset"},
	kerr.TransactionalIDNotFound.Code:  {Class: Retry, Reason: "producer_reset"},
	// The records are there, says the broker; the producer takes it for an acknowledgement.
	kerr.DuplicateSequenceNumber.Code: {Class: Retry, Reason: "producer_reset", Unknown: true},

	// The transaction is lost, its records are not: they are sent in another one.
	kerr.InvalidTxnState.Code:      {Class: Retry, Reason: "transaction"},
	kerr.TransactionAbortable.Code: {Class: Retry, Reason: "transaction"},

	// The limit is on the batch, so that small records fail too when their batch is too large for the topic.
	kerr.MessageTooLarge.Code:    {Class: Shrink, Reason: "too_large", Hint: tooLarge, topic: refreshTopic},
	kerr.RecordListTooLarge.Code: {Class: Shrink, Reason: "too_large", Hint: tooLarge, topic: refreshTopic},

	// The broker looked at the records and will say the same the next time.
	kerr.InvalidRecord.Code:               {Class: Poison, Reason: "invalid_record", Hint: "a compacted topic wants a key on each record"},
	kerr.InvalidTimestamp.Code:            {Class: Poison, Reason: "invalid_timestamp", Hint: "the topic's message.timestamp.before.max.ms or after.max.ms refuses the time of reception"},
	kerr.UnsupportedForMessageFormat.Code: {Class: Poison, Reason: "message_format"},

	// Called retriable by the protocol, but the producer gives up on it at once. On the way (a network card, a proxy) it
	// passes; in the record it stays.
	kerr.CorruptMessage.Code: {Class: Retry, Reason: "corrupt", Tries: 3, Hint: "bytes change on the way to the broker: look at network cards and proxies"},
	// Anything may be behind it, a plug-in of the broker included.
	kerr.UnknownServerError.Code: {Class: Retry, Reason: "server_error", Tries: 10, Hint: "look at the broker's log"},

	// The topic is not what it was.
	kerr.UnknownTopicOrPartition.Code: {Class: Fault, Reason: "topic_missing", topic: refreshTopic},
	// Deleted and made again under the same name: the producer insists on the old ID for ever, until it is purged.
	kerr.UnknownTopicID.Code:      {Class: Retry, Reason: "topic_recreated", topic: purgeTopic},
	kerr.InconsistentTopicID.Code: {Class: Retry, Reason: "topic_recreated", topic: purgeTopic},

	// Somebody has to change something.
	kerr.InvalidTopicException.Code:              {Class: Fault, Reason: "topic_name", Hint: "the cluster refuses the topic's name: choose another topic"},
	kerr.TopicAuthorizationFailed.Code:           {Class: Fault, Reason: "topic_authorization", Hint: "allow this client to write to the topic (ACL WRITE and DESCRIBE)"},
	kerr.ClusterAuthorizationFailed.Code:         {Class: Fault, Reason: "cluster_authorization", Hint: "allow this client IDEMPOTENT_WRITE on the cluster"},
	kerr.TransactionalIDAuthorizationFailed.Code: {Class: Fault, Reason: "transaction_authorization", Hint: "allow this client WRITE on its transactional ID"},
	kerr.ProducerFenced.Code:                     {Class: Dead, Reason: "fenced", Hint: "another gateway runs with the same gateway.id"},
	kerr.PolicyViolation.Code:                    {Class: Fault, Reason: "policy", Hint: "a policy of the cluster refuses the records: look at the broker's log"},
	kerr.UnsupportedCompressionType.Code:         {Class: Fault, Reason: "compression", Hint: "the topic does not take this compression: set the upstream's compression to lz4 or none"},
	kerr.InvalidRequiredAcks.Code:                {Class: Fault, Reason: "protocol"},
	kerr.UnsupportedVersion.Code:                 {Class: Fault, Reason: "protocol", Hint: "the broker is too old: Kafka 0.11 is the oldest that idempotent writes work with"},
	kerr.InvalidConfig.Code:                      {Class: Fault, Reason: "topic_config"},
	kerr.InvalidRequest.Code:                     {Class: Fault, Reason: "protocol"},
	kerr.InvalidTransactionTimeout.Code:          {Class: Fault, Reason: "transaction_timeout", Hint: "raise transaction.max.timeout.ms of the brokers to 60000"},
	kerr.MismatchedEndpointType.Code:             {Class: Fault, Reason: "not_a_broker", Hint: "the address is a controller's: give those of brokers"},
	kerr.UnsupportedEndpointType.Code:            {Class: Fault, Reason: "not_a_broker", Hint: "the address is a controller's: give those of brokers"},
	kerr.UnsupportedSaslMechanism.Code:           {Class: Fault, Reason: "authentication", Hint: "the cluster does not offer this SASL mechanism"},
	kerr.IllegalSaslState.Code:                   {Class: Fault, Reason: "authentication", Hint: "the listener does not want this login: check the port"},
	kerr.PrincipalDeserializationFailure.Code:    {Class: Fault, Reason: "authentication", Hint: "brokers cannot pass this user on to the controller: look at their principal.builder.class"},
	kerr.SaslAuthenticationFailed.Code:           {Class: Fault, Reason: "authentication", Hint: "the cluster refuses the user or password"},
}

// elsewhere are the errors of requests that the gateway does not send, or that never reach a message. One that comes all the same is
// a fault: the record is kept, and somebody is told.
var elsewhere = []*kerr.Error{
	// Making topics: what comes of it is topic_create whatever the code (topics.go).
	kerr.TopicAlreadyExists, kerr.InvalidPartitions, kerr.InvalidReplicationFactor, kerr.InvalidReplicaAssignment, kerr.OperationNotAttempted,
	// Fetches, of reading back: they are asked again until they are answered (readback.go).
	kerr.OffsetOutOfRange, kerr.OffsetNotAvailable, kerr.OffsetMovedToTieredStorage, kerr.InvalidFetchSize,
	kerr.FetchSessionIDNotFound, kerr.InvalidFetchSessionEpoch, kerr.FetchSessionTopicIDError,
	// Consumer, share and streams groups.
	kerr.OffsetMetadataTooLarge, kerr.IllegalGeneration, kerr.InconsistentGroupProtocol, kerr.InvalidGroupID, kerr.UnknownMemberID,
	kerr.InvalidSessionTimeout, kerr.RebalanceInProgress, kerr.InvalidCommitOffsetSize, kerr.GroupAuthorizationFailed, kerr.NonEmptyGroup,
	kerr.GroupIDNotFound, kerr.MemberIDRequired, kerr.GroupMaxSizeReached, kerr.FencedInstanceID, kerr.GroupSubscribedToTopic,
	kerr.UnstableOffsetCommit, kerr.FencedMemberEpoch, kerr.UnreleasedInstanceID, kerr.UnsupportedAssignor, kerr.StaleMemberEpoch,
	kerr.InvalidRecordState, kerr.ShareSessionNotFound, kerr.InvalidShareSessionEpoch, kerr.FencedStateEpoch, kerr.InvalidRegularExpression,
	kerr.StreamsInvalidTopology, kerr.StreamsInvalidTopologyEpoch, kerr.StreamsTopologyFenced, kerr.ShareSessionLimitReached,
	kerr.GroupDeletionFailed, kerr.StreamsTopologyDescriptionUpdateFailed,
	// Delegation tokens, users, ACLs, quotas, features, telemetry.
	kerr.SecurityDisabled, kerr.DelegationTokenAuthDisabled, kerr.DelegationTokenNotFound, kerr.DelegationTokenOwnerMismatch,
	kerr.DelegationTokenRequestNotAllowed, kerr.DelegationTokenAuthorizationFailed, kerr.DelegationTokenExpired, kerr.InvalidPrincipalType,
	kerr.ResourceNotFound, kerr.DuplicateResource, kerr.UnacceptableCredential, kerr.InvalidUpdateVersion, kerr.FeatureUpdateFailed,
	kerr.UnknownSubscriptionID, kerr.TelemetryTooLarge, kerr.TopicDeletionDisabled,
	// Brokers and controllers among themselves.
	kerr.StaleControllerEpoch, kerr.StaleBrokerEpoch, kerr.ReassignmentInProgress, kerr.NoReassignmentInProgress,
	kerr.PreferredLeaderNotAvailable, kerr.EligibleLeadersNotAvailable, kerr.ElectionNotNeeded, kerr.InconsistentVoterSet,
	kerr.SnapshotNotFound, kerr.PositionOutOfRange, kerr.DuplicateBrokerRegistration, kerr.BrokerIDNotRegistered, kerr.InconsistentClusterID,
	kerr.IneligibleReplica, kerr.UnknownControllerID, kerr.InvalidRegistration, kerr.InvalidVoterKey, kerr.DuplicateVoter, kerr.VoterNotFound,
	kerr.ControllerIDNotRegistered,
}

const (
	minISR    = "fewer replicas are in sync than the topic's min.insync.replicas: bring the brokers back; acks are never lowered"
	takenHint = "end one of the two; start this one again if it is to deliver"
	tooLarge  = "raise max.message.bytes of the topic, or lower mqtt.max_packet_size"
)

// Classify says what the error of a message means.
func Classify(err error) Verdict {
	if ke, ok := errors.AsType[*kerr.Error](err); ok {
		if v, ok := verdicts[ke.Code]; ok {
			v.Err = err
			if strings.Contains(err.Error(), "unable to initialize a producer ID") {
				v.Class = Dead // whatever it was, the producer remembers it for ever
			}
			return v
		}
		// One of elsewhere, or a code of a newer protocol: the record is kept and somebody is told. Retrying it is safe.
		return Verdict{Class: Fault, Reason: "unexpected", Err: err, Hint: "look at the broker's log and report the error code"}
	}
	switch {
	case errors.Is(err, errTaken):
		return Verdict{Class: Fault, Reason: "fenced", Hint: takenHint, Err: err}
	case errors.Is(err, kgo.ErrClientClosed):
		// Only a client that is being replaced, or is at its end, is closed.
		return Verdict{Class: Retry, Reason: "outcome_unknown", Unknown: true, Err: err}
	case strings.Contains(err.Error(), "invalid record partitioning choice"):
		// Our picture of the topic is newer than the producer's.
		return Verdict{Class: Retry, Reason: "partitions", Err: err, topic: refreshTopic}
	case strings.Contains(err.Error(), "topic purged while buffered"):
		return Verdict{Class: Retry, Reason: "topic_recreated", Err: err}
	}
	// Faults of the network and of the client. Nothing says that the records are bad.
	reason, hint := ConnectionReason(err)
	return Verdict{Class: Retry, Reason: reason, Hint: hint, Unknown: true, Err: err}
}
