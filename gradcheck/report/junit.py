"""A report as JUnit XML: what build servers read.

The form is the one that most of them accept (Apache Ant's): ``testsuites / testsuite / testcase``, with ``failure`` or
``skipped`` inside. A suite is an oracle, a case a subject.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

from glowtrain.files import write_atomically
from glowtrain.gradcheck.report.report import Check, GradcheckReport
from glowtrain.presentation.messages import plural

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What no XML 1.0 document may hold, escaped or not."""


def junit_xml(report: GradcheckReport) -> str:
    """The report as one JUnit document; a kink and what there was nothing to compare for count as skipped."""
    root = ET.Element("testsuites", _counts(report.checks, "glowtrain gradcheck"), time=f"{report.seconds:.3f}")
    for oracle in dict.fromkeys(check.oracle for check in report.checks):
        checks = tuple(check for check in report.checks if check.oracle == oracle)
        suite = ET.SubElement(root, "testsuite", _counts(checks, oracle))
        properties = ET.SubElement(suite, "properties")
        for name, value in (("seed", report.seed), ("examples", report.examples)):
            ET.SubElement(properties, "property", name=name, value=str(value))
        for check in checks:
            _case(suite, check)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def write_junit(report: GradcheckReport, path: Path | str) -> None:
    """Write the report as JUnit XML. Raises ``OSError``."""
    write_atomically(Path(path), junit_xml(report).encode())


def _counts(checks: tuple[Check, ...], name: str) -> dict[str, str]:
    statuses = [check.status for check in checks]
    skipped = statuses.count("kink") + statuses.count("absent")
    return {
        "name": name,
        "tests": str(len(checks)),
        "failures": str(statuses.count("failed")),
        "errors": "0",
        "skipped": str(skipped),
    }


def _case(suite: ET.Element, check: Check) -> None:
    name = f"glowtrain.gradcheck.{check.oracle.replace(' ', '_')}"
    case = ET.SubElement(suite, "testcase", classname=name, name=_NOT_XML.sub("?", check.subject))
    detail = _NOT_XML.sub("?", check.detail)
    if check.status == "failed":
        failure = ET.SubElement(case, "failure", type="GradientMismatch", message=detail.partition("\n")[0])
        failure.text = f"{detail}\nworst error {check.error:.3g}, {check.ratio:.3g} of what is allowed"
    elif check.status in ("kink", "absent"):
        ET.SubElement(case, "skipped", message=detail or "nothing to compare")
    else:
        out = ET.SubElement(case, "system-out")
        compared = plural(check.examples, "comparison")
        out.text = f"{compared}, worst error {check.error:.3g}, {check.ratio:.3g} of what is allowed"
