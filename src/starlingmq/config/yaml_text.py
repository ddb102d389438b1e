"""YAML text to plain values. Loaded when there is YAML to read: a broker without a settings file does without."""

from __future__ import annotations

from typing import Any

import yaml

from starlingmq.config.section_types import ConfigError


class _Loader(yaml.SafeLoader):
    """Safe YAML in which a key written twice is an error: otherwise the first of the two is silently lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: list[Any] = []
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key!r}", key_node.start_mark)
            seen.append(key)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str, source: str) -> Any:
    """The value of a text; ``source`` is named in the ConfigError when it cannot be read."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 a SafeLoader  # nosec B506
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        location = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark is not None else source
        raise ConfigError(
            f"{location}: {_without_values(error.problem or error.context or 'is not valid YAML')}"
        ) from None
    except (yaml.YAMLError, ValueError, AttributeError, RecursionError) as error:
        # Their words can have the value in them. AttributeError is that of a tag such as !!timestamp for other text.
        name = type(error).__name__
        raise ConfigError(f"{source}: is not valid YAML ({name}); quote text with special characters") from None


def _without_values(problem: str) -> str:
    """YAML's description of a mistake, without the names of tags and aliases: a value may begin with ! or * by
    mistake."""
    for start in ("found undefined alias", "found undefined tag", "could not determine a constructor for the tag"):
        if problem.startswith(start):
            return f"{start}; quote text that begins with !, & or *"
    return problem
