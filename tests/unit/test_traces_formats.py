"""Each trace format on a few rows written for the test, and the rows it must refuse."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gpuloom.core.errors import InputError, TraceError
from gpuloom.traces import TraceRead, formats, read_trace
from gpuloom.traces.slurm import gpus_in

MURI = (
    "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,"
    "iteration_time,resource_time_0,resource_time_1,resource_time_2,priority\r\n"
    "a,2,5000,100,bert,16,1,0,200,50,120,30,1\r\n"
    "b,1,1500,10,dqn,16,1,0,100,80.5,8,0,0\r\n"
)
TIRESIAS = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n4,2,10,5,vgg16,77,3\n"
PHILLY = (
    "timestamp,duration,num_gpus,gpu_time,cluster\n2020-03-02 00:00:10,60.0,2,120.0,x\n2020-03-01 00:00:10,5,1,5,y\n"
)
ITP = "job_id,submission_time,duration,num_gpu\nj-1,100,50,4\n"
ELASTIC = (
    "job_id,submit_time,real_iteration,model_name,ddl,batch_size,num_gpu,real_duration,duration,iteration\n"
    "0,7,10,vgg16,99,64,2,30,31,10\n"
)
ELASTIC_ITP = (
    "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\nu,8,10,bert,99,64,2,30\n"
)
SYNERGY = "0,alexnet,0.5,120,1\n1,lstm,3,60,2\n"
HELIOS = (
    "job_id,user,vc,jobname,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
    "1,u1,v1,n,8,1,1,COMPLETED,2020-05-01 00:00:00,2020-05-01 00:01:00,2020-05-01 00:02:00,60,60\n"
    "2,u1,v1,n,0,1,1,COMPLETED,2020-05-01 00:00:05,2020-05-01 00:01:00,2020-05-01 00:02:00,60,60\n"
    "3,u2,v1,n,1,1,1,CANCELLED,2020-05-01 00:00:06,None,2020-05-01 00:02:00,0,60\n"
    "4,u2,v2,n,1,1,1,FAILED,2020-05-01 00:00:30,2020-05-01 00:00:30,2020-05-01 00:00:30,0,0\n"
)
SEREN = (
    "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time\n"
    "1,u1,1,8.0,9,SFT,COMPLETED,2023-03-01 00:00:00+08:00,2023-03-01 00:01:00+08:00,2023-03-01 00:03:00+08:00,"
    "999,60,1\n"
    "2,u1,1,1,9,Other,FAILED,2023-03-01 00:00:30+08:00,2023-03-01 00:01:00+08:00,2023-03-01 00:01:30+08:00,30,30,1\n"
    "3,u1,1,0,9,Other,FAILED,2023-03-01 00:00:31+08:00,2023-03-01 00:01:00+08:00,2023-03-01 00:01:30+08:00,30,30,1\n"
    "4,u1,1,1,9,Other,CANCELLED,2023-03-01 00:00:32+08:00,,2023-03-01 00:01:30+08:00,30,30,1\n"
)
KALOS = (
    "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,"
    "end_time,fail_time,stop_time,duration,queue,gpu_time\n"
    "d1,u,1,64,9,1,1.0,Pretrain,FAILED,2023-05-01 10:00:00+00:00,2023-05-01 10:00:10+00:00,"
    "2023-05-01 10:00:18+00:00,,,18,10.0,1\n"
)
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
    "p0,1,1,1,500,V100M16|V100M32|V100M32,LS,Running,10,100,20\n"
    "p1,1,1,0,0,,LS,Running,11,100,20\n"
    "p2,1,1,8,1000,,BE,Pending,12,100,\n"
    "p3,1,1,1,1000,,BE,Running,13,,20\n"
)
PODS_WITHOUT_TIMES = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,1,1,1,500\n"
INSTANCES = (
    "instance_sn,role,app_name,gpu_request,creation_time,scheduled_time,deletion_time\n"
    "i0,HN,app,1,5,6,16\ni1,CN,app,0,5,6,16\ni2,HN,app,1,,,16\n"
)
POLLUX = "name,time,application,num_replicas,batch_size\nc-0,5,toy,2,64\nc-1,6,toy,8,128\n"
GAVEL = "\t".join(("Toy (batch size 4)", "run %s", "dir", "-n", "1", "1000", "2", "3", "-1.000000", "40")) + "\n"
MSR = "\t".join(("Toy (batch size 4)", "run %s", "-n", "1", "1000", "6.5", "1")) + "\n"
SHOCKWAVE = (
    "\t".join(("Toy (batch size 4)", "run %s", "dir", "-n", "1", "1000", "2", "gns", "1", "-1", "333", "40")) + "\n"
)
SLURM = (
    "JobID|User|Partition|Submit|Eligible|Start|End|ElapsedRaw|TimelimitRaw|ReqTRES|AllocTRES\n"
    "7|ann|gpu|2026-11-01T10:00:00|2026-11-01T10:05:00|2026-11-01T10:06:00|2026-11-01T10:16:00|590|60|"
    "billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1|cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1\n"
    "7.batch|||2026-11-01T10:06:00|Unknown|2026-11-01T10:06:00|2026-11-01T10:16:00|600|||cpu=8,gres/gpu:a100=2\n"
    "8_3|bob's \"|gpu|2026-11-01T10:00:00|2026-11-01T10:00:00|2026-11-01T10:01:00|2026-11-01T10:01:30||UNLIMITED|"
    "cpu=1,gres/gpu=4|cpu=1,gres/gpu:v100=4\n"
    "9|bob|cpu|2026-11-01T10:00:00|2026-11-01T10:00:00|2026-11-01T10:01:00|2026-11-01T10:01:30|30|5|cpu=1|cpu=1\n"
    "10|bob|gpu|2026-11-01T10:00:00|Unknown|None|2026-11-01T10:01:30|0|Partition_Limit|cpu=1,gres/gpu=1|\n"
    "11|bob|gpu|2026-11-01T10:00:00|2026-11-01T10:00:00|2026-11-01T10:01:30|Unknown|30|5||gres/gpu=1\n"
)
SLURM_OLD = "JobID|Submit|Start|End|AllocGRES|\n1|2019-01-01T00:00:00|2019-01-01T00:00:01|2019-01-01T00:00:03|gpu:2|\n"
OWN = "gpus,submit_s,duration_s\n2,1.5,10\n"
SAMPLES = {
    "muri": [MURI],
    "tiresias": [TIRESIAS],
    "philly": [PHILLY],
    "itp": [ITP],
    "elasticflow": [ELASTIC, ELASTIC_ITP],
    "synergy": [SYNERGY],
    "helios": [HELIOS],
    "acme": [SEREN, KALOS],
    "alibaba": [PODS, PODS_WITHOUT_TIMES, INSTANCES],
    "pollux": [POLLUX],
    "gavel": [GAVEL, MSR],
    "shockwave": [SHOCKWAVE],
    "slurm": [SLURM, SLURM_OLD],
    "gpuloom": [OWN],
}
RATES = {
    "v100": {
        "('Toy (batch size 4)', 1)": {"null": 10.0, "('x', 1)": [1, 2]},
        "('Toy (batch size 4)', 2)": {"null": 20.0},
        "('Big', 1)": {"null": 0.0},
    },
    "p100": {"('Toy (batch size 4)', 1)": {"null": 5.0}, "('Toy (batch size 4)', 2)": {"null": 4.0}},
    "k80": {"('Toy (batch size 4)', 1)": {"null": 1.0}},
    "v100_unconsolidated": {"('Toy (batch size 4)', 2)": {"null": 1.0}},
}


@pytest.fixture
def read(tmp_path: Path):
    """Write a text to a file whose name says nothing, and read it."""

    def _read(text: str, **options: object) -> TraceRead:
        file = tmp_path / "some_file"
        file.write_text(text, newline="")
        return read_trace(file, **options)

    return _read


@pytest.fixture
def rates(tmp_path: Path) -> Path:
    file = tmp_path / "rates.json"
    file.write_text(json.dumps(RATES))
    return file


@pytest.mark.parametrize(("format_id", "text"), [(i, text) for i, texts in SAMPLES.items() for text in texts])
def test_a_format_is_found_by_content_and_by_one_reader_only(format_id: str, text: str, tmp_path: Path) -> None:
    from gpuloom.traces import Head

    head = Head.of(text.encode())
    assert [reader.id for reader in formats().values() if reader.detect(head)] == [format_id]


def test_every_built_in_format_has_a_sample_here() -> None:
    assert set(SAMPLES) == set(formats())


def test_muri_counts_iterations_at_the_slowed_iteration_time(read) -> None:
    w = read(MURI).workload
    assert w.job_ids == ("b", "a")
    assert w.submit_s.tolist() == [1.5, 5.0]
    np.testing.assert_allclose(w.duration_s, [10 * 0.1 * 1.015, 100 * 0.2 * 1.015], rtol=1e-12)
    np.testing.assert_allclose(w.iteration_s, [0.1015, 0.203], rtol=1e-12)
    np.testing.assert_allclose(w.stage_s, [[0.0805, 0.008, 0], [0.05, 0.12, 0.03]], rtol=1e-12)
    assert w.priority.tolist() == [0, 1]
    assert [w.model[0], w.model[1]] == ["dqn", "bert"]
    assert w.gpus.tolist() == [1, 2]
    assert w.line.tolist() == [3, 2]
    assert w.restart_overhead_s is None
    np.testing.assert_allclose(read(MURI.replace(",0,100,80.5", ",0,0.5,80.5")).workload.iteration_s[0], 0.5e-3 * 1.015)
    with pytest.raises(TraceError, match="iteration_time is '0', must be a finite number above 0"):
        read(MURI.replace(",0,100,80.5", ",0,0,80.5"))


def test_bounds_are_allowed_themselves(read) -> None:
    text = "gpus,submit_s,duration_s,gpu_milli\n1,0,10,{}\n"
    for good in (1, 1000):
        assert read(text.format(good)).workload.gpu_milli.tolist() == [good]
    for bad in (0, 1001):
        with pytest.raises(TraceError, match=f"gpu_milli is '{bad}', must be a whole number from 1 to 1000"):
            read(text.format(bad))


def test_tiresias(read) -> None:
    w = read(TIRESIAS).workload
    assert (w.submit_s[0], w.duration_s[0], w.gpus[0], w.job_id(0), w.model[0]) == (10, 77, 2, "4", "vgg16")


@pytest.mark.parametrize("options", [{}, {"format": "tiresias"}])
def test_tiresias_samples_are_no_trace(read, options) -> None:
    with pytest.raises(TraceError, match="gittins:samples=FILE"):
        read("duration\n12\n15\n", **options)


def test_philly_counts_time_from_the_first_submission(read) -> None:
    w = read(PHILLY).workload
    assert w.submit_s.tolist() == [0, 86400]
    assert w.duration_s.tolist() == [5, 60]
    assert [w.group[0], w.group[1]] == ["y", "x"]
    assert any("2020-03-01 00:00:10" in note for note in w.notes)


def test_itp_keeps_numeric_times(read) -> None:
    w = read(ITP).workload
    assert (w.submit_s[0], w.duration_s[0], w.gpus[0], w.job_id(0)) == (100, 50, 4, "j-1")


@pytest.mark.parametrize(("text", "submit", "duration"), [(ELASTIC, 7, 31), (ELASTIC_ITP, 8, 30)])
def test_elasticflow_in_both_headers(read, text: str, submit: float, duration: float) -> None:
    w = read(text).workload
    assert (w.submit_s[0], w.duration_s[0], w.gpus[0]) == (submit, duration, 2)
    assert any("deadlines are not read" in note for note in w.notes)


def test_synergy_has_no_header(read) -> None:
    w = read(SYNERGY).workload
    assert w.submit_s.tolist() == [0.5, 3]
    assert w.duration_s.tolist() == [120, 60]
    assert w.gpus.tolist() == [1, 2]
    assert w.line.tolist() == [1, 2]


def test_helios_leaves_out_what_used_no_gpu_or_never_started(read) -> None:
    w = read(HELIOS).workload
    assert w.job_ids == ("1", "4")
    assert w.submit_s.tolist() == [0, 30]
    assert w.duration_s.tolist() == [60, 0]
    assert [w.user[1], w.group[1]] == ["u2", "v2"]
    notes = " ".join(w.notes)
    assert "1 job left out, which used no GPU" in notes
    assert "1 job left out, which never started" in notes


def test_helios_without_job_names(read) -> None:
    text = "\n".join(",".join(p for i, p in enumerate(r.split(",")) if i != 3) for r in HELIOS.splitlines())
    assert len(read(text).workload) == 2


def test_acme_counts_the_running_time_only(read) -> None:
    seren = read(SEREN).workload
    assert seren.duration_s.tolist() == [120, 30]
    assert seren.submit_s.tolist() == [0, 30]
    assert seren.gpus.tolist() == [8, 1]
    assert [seren.group[0], seren.group[1]] == ["SFT", "Other"]
    assert any("2023-02-28 16:00:00 UTC" in note for note in seren.notes)
    kalos = read(KALOS).workload
    assert kalos.duration_s.tolist() == [8]  # the column says 18, with the queue


def test_slurm_counts_what_ran_on_gpus_from_when_it_was_eligible(read) -> None:
    found = read(SLURM)
    w = found.workload
    assert w.job_ids == ("8_3", "7")
    assert w.submit_s.tolist() == [0.0, 300.0]
    assert w.duration_s.tolist() == [30.0, 590.0]
    assert w.gpus.tolist() == [4, 2]
    assert [w.user[job] for job in (0, 1)] == ["bob's \"", "ann"]
    assert [w.group[job] for job in (0, 1)] == ["gpu", "gpu"]
    assert [w.gpu_type[job] for job in (0, 1)] == ["", "A100"]
    assert np.isnan(w.estimate_s[0])
    assert w.estimate_s[1] == 3600.0
    text = "\n".join(found.workload.notes)
    for said in ("which are steps of others", "which used no GPU", "which never started", "which had not ended"):
        assert f"1 job left out, {said}" in text


@pytest.mark.parametrize(
    ("tres", "gpus", "model"),
    [
        ("", 0, ""),
        ("cpu=8,mem=4G,node=1", 0, ""),
        ("cpu=1,gres/gpu=4", 4, ""),
        ("gres/gpu:a100=4,gres/gpu=4", 4, "A100"),
        ("gres/gpu=4,gres/gpu:a100=2,gres/gpu:v100=2", 4, ""),
        ("gres/gpu:a100=2,gres/gpu:v100=1", 3, ""),
        ("gres/gpu:a100_1g.5gb=2", 2, "A100_1G.5GB"),
        ("gpu:2", 2, ""),
        ("gpu:2(S:0-1)", 2, ""),
        ("gpu:tesla:3(IDX:0-2)", 3, "TESLA"),
        ("gpu:tesla", 1, "TESLA"),
        ("gpu", 1, ""),
        ("gres/gpumem=80G,gres/gpuutil=5", 0, ""),
        ("license/gpu=3", 0, ""),
    ],
)
def test_gpus_in_what_slurm_says_of_resources(tres: str, gpus: int, model: str) -> None:
    assert gpus_in(tres) == (gpus, model)


def test_slurm_without_start_and_end(read) -> None:
    text = "JobID|Submit|ElapsedRaw|ReqTRES\n1|2026-11-01T10:00:00|60|gres/gpu=1\n2|2026-11-01T10:00:09|{}|gres/gpu=2\n"
    w = read(text.format(7)).workload
    assert (w.duration_s.tolist(), w.gpus.tolist(), w.gpu_type) == ([60.0, 7.0], [1, 2], None)
    assert (w.estimate_s, w.user) == (None, None)
    with pytest.raises(
        TraceError, match=r":3, column 'ElapsedRaw': ElapsedRaw is empty, and there are no Start and End"
    ):
        read(text.format(""))
    with pytest.raises(TraceError, match="no known trace format"):
        read(text.replace("ElapsedRaw", "Elapsed"))


def test_slurm_of_before_2017_says_in_gres_what_was_asked_for(read) -> None:
    text = "JobID|Submit|ElapsedRaw|ReqGRES\n1|2019-01-01T00:00:00|60|gpu:v100:2\n2|2019-01-01T00:00:09|7|gpu:1\n"
    w = read(text).workload
    assert (w.gpus.tolist(), [w.gpu_type[job] for job in (0, 1)]) == ([2, 1], ["V100", ""])


def test_slurm_needs_a_column_with_gpus_and_times_in_order(read) -> None:
    with pytest.raises(TraceError, match="no known trace format"):
        read(SLURM_OLD.replace("AllocGRES", "NCPUS"))
    with pytest.raises(TraceError, match=r"some_file:2, column 'End': End is 1 s before Start"):
        read(SLURM_OLD.replace("00:00:03", "00:00:00"))
    again = SLURM_OLD + SLURM_OLD.splitlines(keepends=True)[1]
    with pytest.raises(TraceError, match=r"JobID '1' was used before, on line 2"):
        read(again)
    assert read(SLURM_OLD).workload.duration_s.tolist() == [2.0]


@pytest.mark.parametrize("text", [SEREN, HELIOS], ids=["acme", "helios"])
def test_two_jobs_of_one_name_are_refused(read, text: str) -> None:
    with pytest.raises(TraceError, match="job_id") as caught:
        read(text.replace("\n2,", "\n1,"))
    assert caught.value.line == 3


def test_acme_refuses_an_end_before_the_start(read) -> None:
    bad = SEREN.replace("2023-03-01 00:03:00+08:00", "2023-03-01 00:00:59+08:00")
    with pytest.raises(TraceError, match="1 s before start_time") as caught:
        read(bad)
    assert (caught.value.line, caught.value.column) == (2, "end_time")


def test_alibaba_pods(read) -> None:
    w = read(PODS).workload
    assert w.job_ids == ("p0", "p2")
    assert w.duration_s.tolist() == [80, 88]
    assert w.gpu_milli.tolist() == [500, 1000]
    assert [w.gpu_type[0], w.gpu_type[1]] == ["V100M16|V100M32", ""]
    notes = " ".join(w.notes)
    assert "used no GPU" in notes
    assert "no deletion_time" in notes
    assert "1 job never scheduled" in notes


def test_alibaba_instances(read) -> None:
    w = read(INSTANCES).workload
    assert (w.job_ids, w.duration_s.tolist(), w.submit_s.tolist()) == (("i0",), [10], [5])
    assert w.group[0] == "app"


def test_alibaba_without_times_says_so(read) -> None:
    with pytest.raises(TraceError, match="holds no times"):
        read(PODS_WITHOUT_TIMES)


K80_FROM_P100 = 0.2 * (4.37 * 240 / (9.3 * 732)) ** 0.5


def test_gavel_divides_steps_by_the_throughput(read, rates: Path) -> None:
    w = read(GAVEL, throughputs=rates).workload
    assert sum("not measured are estimated" in note for note in w.notes) == 1
    assert w.duration_s.tolist() == [50]
    assert (w.gpus[0], w.weight[0], w.submit_s[0], w.model[0]) == (2, 3, 40, "Toy (batch size 4)")
    assert w.iteration_s.tolist() == [0.05]
    assert w.speeds.models == ("V100", "P100", "K80")
    # Not measured on K80: estimated from P100, the nearest, by √(FP32 rate × bandwidth).
    assert w.speeds.factor[0] == pytest.approx([1, 0.2, K80_FROM_P100])
    assert w.speeds.estimated.tolist() == [[False, False, True]]


def test_gavel_on_another_model(read, rates: Path) -> None:
    w = read(MSR, throughputs=rates, gpu_model="p100").workload
    assert w.duration_s.tolist() == [200]
    assert (w.speeds.models, w.speeds.factor.tolist()) == (("P100", "V100", "K80"), [[1, 2, 0.2]])
    assert (w.submit_s[0], w.gpus[0], w.weight) == (6.5, 1, None)


def test_gavel_finds_throughputs_beside_the_trace(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / "t").write_text(GAVEL)
    with pytest.raises(TraceError, match="--throughputs FILE"):
        read_trace(folder / "t")
    (tmp_path / "simulation_throughputs.json").write_text(json.dumps(RATES))
    notes = read_trace(folder / "t").workload.notes
    assert any("simulation_throughputs.json" in note for note in notes)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [("Toy (batch size 4)", "Unknown", "no throughput of 'Unknown'"), ("\t2\t3", "\t16\t3", "on 16 V100")],
)
def test_gavel_job_that_was_not_measured(read, rates: Path, old: str, new: str, reason: str) -> None:
    with pytest.raises(TraceError, match=reason) as caught:
        read(GAVEL + GAVEL.replace(old, new), throughputs=rates)
    assert (caught.value.line, caught.value.column) == (2, "job_type")
    skipped = read(GAVEL + GAVEL.replace(old, new), throughputs=rates, skip_bad_rows=True)
    assert (len(skipped.workload), len(skipped.bad_rows)) == (1, 1)


def test_gavel_job_that_does_not_fit_the_reference(read, rates: Path) -> None:
    with pytest.raises(TraceError, match="does not fit 1 V100"):
        read(MSR.replace("Toy (batch size 4)", "Big"), throughputs=rates)


def test_throughputs_that_are_none(read, rates: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no throughputs for GPU model 'H100'; it has V100, P100, K80"):
        read(GAVEL, throughputs=rates, gpu_model="H100")
    with pytest.raises(InputError, match="no such file"):
        read(GAVEL, throughputs=tmp_path / "nowhere.json")
    rates.write_text('{"v100": {"Toy": {"null": 1}}}')
    with pytest.raises(TraceError, match="not a throughput file"):
        read(GAVEL, throughputs=rates)


def test_shockwave_keeps_its_own_durations(read, rates: Path) -> None:
    alone = read(SHOCKWAVE).workload
    assert (alone.duration_s.tolist(), alone.submit_s.tolist(), alone.speeds) == ([333], [40], None)
    w = read(SHOCKWAVE + SHOCKWAVE.replace("Toy (batch size 4)", "New"), throughputs=rates).workload
    assert w.duration_s.tolist() == [333, 333]
    assert w.speeds.factor == pytest.approx(np.array([[1, 0.2, K80_FROM_P100], [1, 0, 0]]))
    assert w.speeds.estimated.tolist() == [[False, False, True], [False] * 3]
    assert [note for note in w.notes if note.endswith("; 1 job not measured there: on V100 only")]
    known = read(SHOCKWAVE, throughputs=rates).workload
    assert not any("not measured there" in note for note in known.notes)


def test_shockwave_without_durations_needs_throughputs(read, rates: Path) -> None:
    old = SHOCKWAVE.replace("\t333", "")
    with pytest.raises(TraceError, match="--throughputs"):
        read(old)
    result = read(old, throughputs=rates)
    assert (result.format, result.workload.duration_s.tolist()) == ("shockwave", [50])


def _profiles(folder: Path) -> Path:
    app = folder / "toy"
    app.mkdir(parents=True)
    (app / "validation-64.csv").write_text("progress,iteration,metric\n1,50,0\n2,100,0\n")
    (app / "validation-256.csv").write_text("progress,iteration,metric\n2,30,0\n")
    (app / "placements.csv").write_text(
        "placement,local_bsz,step_time,sync_time\n1,16,1,0\n11,16,9,5\n11,32,9,5\n2,16,2,1\n2,48,4,1\n"
    )
    (app / "scalability.csv").write_text("num_nodes,num_replicas,local_bsz,step_time,sync_time\n8,8,4,3,1\n8,8,8,5,1\n")
    return folder


def test_pollux_estimates_from_profiles(read, tmp_path: Path) -> None:
    w = read(POLLUX, throughputs=_profiles(tmp_path / "profiles")).workload
    # c-0: 2 replicas on one node, local batch 32: halfway between 2 and 4 s, 100 iterations.
    # c-1: batch 128 lies as far from 64 as from 256: the smaller, half its iterations; local batch 16 is two
    # micro-batches of 8: 2 · (5 - 1) + 1 s.
    assert w.duration_s.tolist() == [300, 450]
    assert w.iteration_s.tolist() == [3, 9]
    assert any("estimates" in note for note in w.notes)
    inside = tmp_path / "archive"
    inside.mkdir()
    (tmp_path / "profiles").rename(inside / "traces")  # as the archive is laid out
    assert read(POLLUX, throughputs=inside).workload.duration_s.tolist() == [300, 450]


def test_pollux_without_profiles_or_with_an_unknown_application(read, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="--throughputs FILE"):
        read(POLLUX)
    with pytest.raises(TraceError, match="application is 'other', must be one of toy") as caught:
        read(POLLUX.replace(",toy,8", ",other,8"), throughputs=_profiles(tmp_path / "p"))
    assert caught.value.line == 3
    with pytest.raises(TraceError, match="batch_size") as caught:
        read(POLLUX.replace(",8,128", ",8,"), throughputs=_profiles(tmp_path / "q"))
    assert caught.value.line == 3
    with pytest.raises(TraceError, match=r"placements\.csv"):
        read(POLLUX, throughputs=tmp_path)
    bare = _profiles(tmp_path / "r")
    for file in bare.glob("toy/validation-*.csv"):
        file.unlink()
    with pytest.raises(TraceError, match=r"can't be read as profiles of Pollux: .*toy/validation-\*\.csv"):
        read(POLLUX, throughputs=bare)


@pytest.mark.parametrize(
    ("text", "old", "new", "line", "column", "reason"),
    [
        (PHILLY, "60.0,2", "60.0,abc", 2, "num_gpus", "num_gpus is 'abc', must be a whole number of at least 1"),
        (PHILLY, "60.0,2", "60.0,0", 2, "num_gpus", "num_gpus is '0'"),
        (PHILLY, "60.0,2", "60.0,1.5", 2, "num_gpus", "num_gpus is '1.5'"),
        (PHILLY, "60.0,2", "60.0,3000000000", 2, "num_gpus", "num_gpus is '3000000000'"),
        (PHILLY, "60.0,2", "nan,2", 2, "duration", "duration is 'nan', must be a finite number of at least 0"),
        (PHILLY, "60.0,2", "inf,2", 2, "duration", "duration is 'inf'"),
        (PHILLY, "60.0,2", "1_0,2", 2, "duration", "duration is '1_0'"),
        (PHILLY, "60.0,2", "-1,2", 2, "duration", "duration is '-1'"),
        (PHILLY, "60.0,2", ",2", 2, "duration", "duration is empty"),
        (PHILLY, "2020-03-01 00", "2020-13-01 00", 3, "timestamp", "timestamp is '2020-13-01 00:00:10'"),
        (PHILLY, "2020-03-01 00:00:10", "now", 3, "timestamp", "timestamp is 'now', must be a time"),
        (PHILLY, ",x", ",x,more", 2, None, "has 6 fields, must have 5"),
        (PHILLY, "120.0,x", "120.0", 2, None, "has 4 fields, must have 5"),
        (ITP, "100,50", "-1,50", 2, "submission_time", "submission_time is '-1'"),
        (ITP, "j-1", "", 2, "job_id", "job_id is empty"),
        (ITP + "j-1,1,1,1\n", "x", "x", 3, "job_id", "job_id 'j-1' was used before, on line 2"),
        (SYNERGY, "0.5", "soon", 1, "submit", "submit is 'soon'"),
        (MURI, "200,50", "0,50", 2, "iteration_time", "must be a finite number above 0"),
        (PODS, "1,500", "1,2500", 2, "gpu_milli", "must be a whole number from 0 to 1000"),
        (PODS, "10,100,20", "10,100,200", 2, "deletion_time", "100 s too early"),
        (OWN, "2,1.5", "2,-1.5", 2, "submit_s", "submit_s is '-1.5'"),
    ],
)
def test_bad_rows(read, text: str, old: str, new: str, line: int, column: str | None, reason: str) -> None:
    bad = text.replace(old, new, 1)
    with pytest.raises(TraceError) as caught:
        read(bad)
    error = caught.value
    assert (error.line, error.column) == (line, column)
    assert reason in error.reason
    assert error.file.endswith("some_file")
    assert f"some_file:{line}" in str(error)
    rows = len(text.splitlines()) - (text != SYNERGY)
    if rows > 1:
        result = read(bad, skip_bad_rows=True)
        assert [(e.line, e.reason) for e in result.bad_rows] == [(line, error.reason)]
        assert any("1 bad row" in note for note in result.workload.notes)
    else:
        with pytest.raises(TraceError, match="holds no jobs: 1 bad row"):
            read(bad, skip_bad_rows=True)


def test_the_first_bad_row_is_named_whatever_its_column(read) -> None:
    bad = PHILLY.replace("60.0,2", "60.0,zero").replace("2020-03-01", "2020-99-01")
    with pytest.raises(TraceError) as caught:
        read(bad)
    assert caught.value.line == 2
    assert [e.line for e in _skipped(read, bad + "2020-03-03 00:00:10,1,1,1,z\n").bad_rows] == [2, 3]


def _skipped(read, text: str) -> TraceRead:
    return read(text, skip_bad_rows=True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty: it holds no jobs"),
        ("\n\n", "is empty: it holds no jobs"),
        (ITP.splitlines()[0] + "\n", "holds no jobs, only a header"),
        (
            "a,b,c\n1,2,3\n",
            "has no known trace format; its first line is 'a,b,c'.*duration_s and gpus; for .*muri.*philly",
        ),
        ("submit_s,duration,gpus\n0,1,1\n", r"gpus \(it lacks duration_s\)"),
        ("submit_s;duration_s;gpus\n0;1;1\n", "its first line is 'submit_s;duration_s;gpus'"),
        (ITP.replace("submission_time,", "submission_time,job_id,").replace("j-1,", "j-1,x,"), "'job_id' twice"),
        ("runtime\n3\n", "list of run times"),
    ],
)
def test_files_that_are_no_trace(read, text: str, reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        read(text)


def test_a_forced_format_names_the_missing_columns(read) -> None:
    with pytest.raises(TraceError, match="lacks columns timestamp, num_gpus; it has 'job_id"):
        read(ITP, format="philly")


def test_only_jobs_without_gpus(read) -> None:
    text = "".join(HELIOS.splitlines(keepends=True)[i] for i in (0, 2))
    with pytest.raises(TraceError, match="holds no jobs: 1 job left out, which used no GPU"):
        read(text)
