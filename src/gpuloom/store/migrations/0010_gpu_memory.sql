-- The memory that an attempt used on one GPU at its peak.

ALTER TABLE attempts ADD COLUMN gpu_memory_mib REAL; -- NULL: it was not seen, or others used its GPUs as well
