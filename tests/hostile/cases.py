"""One hostile model: files, how it is opened, and what the error must name."""

import pathlib


class Case:
    """files: name -> bytes, or None for a folder of that name.

    names   must stand in the error: the file, then the tensor, key or field
    opens   what is given to troupe: "" the folder, or one of the files
    how     "ids": weights alone; "text": the tokenizer, too; "chat": the chat template, too
    headers False when only values are wrong: `troupe inspect`, which reads none, may accept it
    """

    def __init__(self, name, files, names, opens="", how="ids", headers=True):
        self.name, self.files, self.opens, self.how, self.headers = name, files, opens, how, headers
        self.names = [names] if isinstance(names, str) else list(names)

    def write(self, folder):
        for name, content in self.files.items():
            path = pathlib.Path(folder) / name
            if content is None:
                path.mkdir(parents=True)
            else:
                path.write_bytes(content)
        return pathlib.Path(folder) / self.opens if self.opens else pathlib.Path(folder)


def read_folder(folder):
    """What a model consists of: its settings and weights."""
    kept = (".json", ".safetensors", ".jinja", ".gguf")
    return {
        p.name: p.read_bytes()
        for p in sorted(pathlib.Path(folder).iterdir())
        if p.suffix in kept and p.name not in ("golden.safetensors", "tensors.json")
    }
