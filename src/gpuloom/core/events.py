"""Events of live jobs, nodes and the scheduler: an append-only log from which every record can be rebuilt.

Types and their data (all JSON):
    jobs.submitted      {user, spec, first, count, indices|null, held, after, estimates: [[seconds, source], …], name}
                        name: if the job has another one than its spec
    job.held, job.released                  {}
    job.suspended       {}, or {for}: the interactive job for which it makes room
    job.resumed         {}
    job.updated         {spec, after, estimate_s, estimate_from, name}; or, of several jobs that shared a spec and
                        share the changed one, for all but the first {changes, spec_of, after, estimate_s,
                        estimate_from}
                        changes: fields of the spec; spec_of: the event of the first
    job.cancelled       {message, reason}   a job that waited
    job.requeued        {}                  a job that had ended; it counts as submitted anew
    job.flagged         {flag, text}        an empty text takes the flag away
    job.resized         {attempt, from_gpus, to_gpus, from_replicas, to_replicas, why, jobs}    no record changes
                        the attempt starts at another size than the one before; why: core/replicas.py: ResizeWhy; jobs:
                        those that got its GPUs, or gave theirs up
    job.replica_failed  {attempt, replicas, left, gpus: [[node, gpu], …], in_a_row, most, step|null}
                        replicas of an elastic job failed by themselves, and it goes on; no record changes. gpus:
                        theirs; in_a_row: failures without new progress, of which `most` are forgiven; step: the
                        last that it had reported
    job.resize_cost     {attempt, from_replicas, to_replicas, cost_s, lost_steps|null, cost_from}    no record changes
                        the attempt that was resized works again: how long the job stood still, and the steps it did
                        again; cost_from: core/replicas.py: CostFrom
    attempt.starting    {attempt, allocation: [[node, [gpu, …]], …], identity, gpu_model}
    attempt.running     {pid, start_ticks, boot_id}
    attempt.stopping    {reason, deadline_s}; of one that is resized also {to_gpus, why, jobs}; of one that stood still
                        also {text}: why it can't any longer (live/dispatch/let_go.py)
    attempt.frozen      {}; of one that is suspended {suspended_mib, moved_s}: GPU memory that went to the machine's
                        memory, and how long that took
    attempt.thawed      {allocation}; of one that was suspended also {moved_s}
    attempt.not_suspended   {why}   no record changes: it was to be suspended, and could not be; it is ended instead
    attempt.rehearsed   {run, ok, mib, out_s, in_s, why, earnest, program, gpu_model, driver}    no record changes
                        whether its program bears being suspended (live/records/rehearsals.py); earnest: it was to
                        make way
    attempt.ended       {reason, exit_code, signal, message, saved, saved_by, work_s, peak_memory_mib, next,
                        not_before_s, failure, ended_s, it_per_s, gpu_memory_mib, kept,
                        last_step, last_s}
                        ended_s: when the process ended; the event may be written later. kept: its newest save
                        ({step, at_s, keeper, framework}; core/kept.py), if it reported one. last_step, last_s: the
                        last step that it reported, and when; not there if it reported none
    member.restarted    {attempt, member, node, why, times}     no record changes
                        a member of an attempt failed, and was begun anew while the others ran on; times: of this member
    group.changed       {members, was, gpus: {node: [gpu, …]}, order|null, rates: {job: rate|null}, efficiency|null,
                        alone: {job: iterations per second|null}}
                        no record changes: groups follow from attempts. Jobs that share GPUs from now on, and those who
                        did before, of these or of a group that is no more (members: [], the last four not there)
    group.measured      {members, kinds, gpu_model, gpus, shares, iterations, gain, pays, until_s, full}
                        no record changes
                        what each kept of its speed alone, and their sum; until_s: if it did not pay, it is not formed
                        again until then (live/records/together.py); full: GPU memory did not hold them
    node.changed        {node: {…}}         a NodeRecord without its `cause`
    policy.set          {policy, interval_s}
    policy.failed       {policy, call, error, where, since_s, last_s, times, serves}    serves: the policy in its place
    policy.recovered    {the same}          it has worked for a while
    scheduler.started, scheduler.stopped, clock.jumped      {…}     no record changes
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """Number `id` of the log, at `at_s`; `job` where it is about one. data: a JSON object."""

    id: int
    at_s: float
    type: str
    job: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
