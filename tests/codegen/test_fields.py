"""What the public headers say: every field of heed_problem is in a list of fields.h and has a meaning; every declaration has a comment
of Doxygen's."""
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(sys.argv.pop(1))
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "runtime")]
import headers
import problem_fields


class Fields(unittest.TestCase):
    def test_every_field_is_in_one_list(self):
        listed = [entry.name for kind in ("PROBLEM", "OTHER") for entry in headers.entries(f"HEED_{kind}_FIELDS")]
        declared = [field.name for field in headers.struct("heed_problem")]
        self.assertEqual(sorted(["struct_size", *listed]), sorted(declared))
        self.assertGreater(len(listed), 40)

    def test_every_row_of_the_table_says_what_the_field_is(self):
        for name, kind, initial, _, meaning in problem_fields.rows():
            self.assertTrue(all((kind, initial, meaning)), name)
        rows = {row[0]: row for row in problem_fields.rows()}
        self.assertEqual(rows["`scale`"][1:4], ("`float`", "`NAN`", "finite, or NaN for 1/sqrt(head_dim)"))
        self.assertEqual(rows["`mask_shape`"][1], "`int32_t[4]`")
        self.assertEqual(rows["`score_mod`"][1], "`const char *`")

    def test_comments_are_doxygens(self):
        declarations = 0
        for header in (ROOT / "runtime/include/heed").glob("*.h"):
            text = header.read_text()
            for found in re.finditer(r"^(HEED_API|typedef (struct|enum)|#define HEED_\w+\(X\)) .*", text, re.M):
                declarations += 1
                before = text[:found.start()]
                self.assertTrue(before.endswith("*/\n"), f"{header.name}: {found[0]} has no comment")
                self.assertTrue(before[before.rindex("/*"):].startswith("/**"), f"{header.name}: {found[0]}: /**")
            for found in re.finditer(r"^.*[;,\w] +/\*(?!\*<).*", text, re.M):
                self.fail(f"{header.name}: {found[0]}: a comment after its declaration begins with /**<")
        self.assertGreater(declarations, 80)


unittest.main()
