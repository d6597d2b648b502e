export { FencingModule } from './nest/fencing.module.js';
export type { FencingModuleExtras, FencingModuleOptions } from './nest/fencing.module-definition.js';
export { Leased, type LeasedOptions } from './nest/leased.decorator.js';
export { FencedWrite, type FencedWriteOptions } from './nest/fenced-write.decorator.js';
export { InjectFencedRepository } from './nest/inject-fenced-repository.js';
export { AcceptFencing, type AcceptFencingOptions } from './nest/accept-fencing.decorator.js';
export { CurrentLease } from './nest/current-lease.decorator.js';
export {
  type AcquiredLease,
  FencingService,
  type KeyReport,
  type OperationOptions,
  type RevokeOptions,
} from './nest/fencing.service.js';
export {
  type FencingHealth,
  FencingHealthIndicator,
  type FencingHealthStatus,
} from './nest/fencing-health.indicator.js';
export { FencingEvents } from './nest/fencing-events.js';
export { FencingInterceptor } from './nest/fencing.interceptor.js';
export { FencingExceptionFilter } from './nest/fencing-exception.filter.js';
export { keyMap, type KeyMapEntry } from './nest/key-map.js';
export { fencingEventsToken, fencingHealthToken, fencingServiceToken } from './nest/tokens.js';

export type { CancelTimer, Clock } from './core/clock.js';
export type { KeyDescription } from './core/key-map.js';
export { leaseKey, type KeyFunction, type KeyPart, type KeySource, type LeaseKey } from './core/key.js';
export { Lease, type LeaseState } from './core/lease.js';
export type { LeaseCallOptions, LeaseOptions } from './core/options.js';
export type { WriteOptions } from './core/fenced-writes.js';
export { type FencingHeaders, fencingHeaders } from './core/fencing-headers.js';
export {
  FENCING_EVENT_NAMES,
  fencingChannelName,
  type FencingEvent,
  type FencingEventFacts,
  type FencingEventName,
  type GrantFacts,
  type LossReason,
} from './core/events.js';
export { keyLabel } from './core/key-label.js';
export {
  CommitUnknownError,
  FenceBypassError,
  FencingConfigError,
  FencingError,
  type FencingErrorCode,
  FencingHeadersError,
  GenerationsExhaustedError,
  LeaseBusyError,
  LeaseKeyError,
  LeaseLostError,
  LeaseOrderError,
  LeaseReleasedError,
  LeaseUncertainError,
  NoLeaseError,
  OperationConflictError,
  RowMissingError,
  RowProtectedError,
  StaleGenerationError,
  StoreUnavailableError,
  WaitAbortedError,
  WriteRolledBackError,
} from './core/errors.js';

export { memoryLeases } from './testing/memory-lease-store.js';

// The ports, for stores and fences of your own.
export {
  type AcquireAnswer,
  type AcquireRequest,
  type Grant,
  type LeaseSnapshot,
  LeaseStore,
  type ReleaseAnswer,
  type ReleaseRequest,
  type RenewRequest,
  type StoreFinding,
  type WakeHint,
  type Watch,
} from './core/lease-store.js';
export type { Diagnosis, Finding, Severity } from './core/diagnosis.js';
export {
  type ActivationAnswer,
  type ActivationRequest,
  Fence,
  type FenceSnapshot,
  type IsolationLevel,
  type OperationRequest,
  type Receipt,
  type Revocation,
  type RevocationRequest,
  type WriteAuthority,
  type WriteOutcome,
  type WriteRequest,
} from './core/fence.js';
export type { AuditEntry, AuditNote } from './core/audit.js';
export type { FenceSource, LeaseStoreSource } from './core/sources.js';
