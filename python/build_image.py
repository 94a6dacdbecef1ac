#!/usr/bin/env python3
"""Builds an image of the Debian package's files, for the images of others to copy from.

    python/build_image.py [--out DIR] [--deb FILE]

    oci-layout, index.json     the image as the OCI has it on a disk
    blobs/sha256/              the manifest, the configuration, and the files as one layer
    manifest.json              that again, for what loads only Docker's archives

All in one tar file: written here, so that it needs no Docker. Nothing of a distribution is in the
image, no libc either: `COPY --from` takes the files of it, or a runtime mounts it. A package always
gives one image: times are SOURCE_DATE_EPOCH's.
"""

import argparse
import gzip
import hashlib
import io
import json
import pathlib
import tarfile
import time

import build_deb
import build_wheel as builder

ROOT = builder.ROOT
OCI = "application/vnd.oci.image"
BLOBS = "blobs/sha256"


def digest(data):
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def annotations(number, revision):
    """What registries show of an image."""
    said = {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(builder.moment())),
        "description": "Programs in less memory than they need: files to copy into an image",
        "licenses": "MIT OR Apache-2.0",
        "source": "https://github.com/uzswap/uzswap",
        "title": "uzswap",
        "version": number,
    }
    if revision:
        said["revision"] = revision
    return {f"org.opencontainers.image.{key}": value for key, value in said.items()}


def layout(data, number, revision):
    """The files of the image whose only layer is the tar file `data`: names and bytes."""
    files = {}

    def blob(kind, content):
        """Keeps bytes under their digest; how others refer to them."""
        named = digest(content)
        files[f"{BLOBS}/{named.partition(':')[2]}"] = content
        return {"mediaType": f"{OCI}.{kind}", "digest": named, "size": len(content)}

    def text(value):
        return json.dumps(value, indent=1, sort_keys=True).encode()

    said = annotations(number, revision)
    layer = blob("layer.v1.tar+gzip", gzip.compress(data, 9, mtime=0))
    created = said["org.opencontainers.image.created"]
    configuration = {
        "architecture": "amd64",
        "config": {"Labels": said},
        "created": created,
        "history": [{"created": created, "created_by": "python/build_image.py"}],
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [digest(data)]},
    }
    config = blob("config.v1+json", text(configuration))
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{OCI}.manifest.v1+json",
        "config": config,
        "layers": [layer],
        "annotations": said,
    }
    entry = blob("manifest.v1+json", text(manifest))
    entry["platform"] = {"architecture": "amd64", "os": "linux"}
    # Under the second name Docker and Podman keep what they load.
    entry["annotations"] = {
        "org.opencontainers.image.ref.name": number,
        "io.containerd.image.name": f"docker.io/library/uzswap:{number}",
    }
    index = {"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": [entry]}
    path_of = lambda part: f"{BLOBS}/{part['digest'].partition(':')[2]}"
    docker = {"Config": path_of(config), "Layers": [path_of(layer)]}
    files["oci-layout"] = text({"imageLayoutVersion": "1.0.0"})
    files["index.json"] = text(index)
    files["manifest.json"] = text([{**docker, "RepoTags": [f"uzswap:{number}"]}])
    return files


def pack(package, out, revision=None):
    """Makes the image of a Debian package; its path."""
    number = builder.version()
    files = layout(build_deb.data_of(package), number, revision)
    out.mkdir(parents=True, exist_ok=True)
    image = out / f"uzswap-{number}-amd64.oci.tar"
    with tarfile.open(image, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        # Directories are named, too: one that is not, tools give to root, which users may not.
        for name in (pathlib.PurePath(BLOBS).parent, BLOBS):
            entry = tarfile.TarInfo(str(name))
            entry.type, entry.mtime, entry.mode = tarfile.DIRTYPE, builder.moment(), 0o755
            tar.addfile(entry)
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(content), builder.moment(), 0o644
            tar.addfile(entry, io.BytesIO(content))
    return image


def manifest_of(image):
    """An image's manifest and its digest, by which a registry names it; also its layer's bytes."""
    with tarfile.open(image) as tar:
        bytes_of = lambda name: tar.extractfile(name).read()
        found = json.loads(bytes_of("index.json"))["manifests"][0]["digest"]
        blob = lambda named: bytes_of(f"{BLOBS}/{named.partition(':')[2]}")
        manifest = json.loads(blob(found))
        return manifest, found, blob(manifest["layers"][0]["digest"])


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = options.add_argument
    add("--out", type=pathlib.Path, default=ROOT / "dist", help="where the image goes")
    add("--deb", type=pathlib.Path, help="a package that was made before")
    given = options.parse_args()
    package = given.deb or build_deb.pack(builder.build(False), given.out)
    image = pack(package, given.out)
    print(image, manifest_of(image)[1])


if __name__ == "__main__":
    main()
