package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	gpl = `This program is free software: you can redistribute it and/or modify it under the terms of the
GNU General Public License as published by the Free Software Foundation, either version 3 of the License,
or (at your option) any later version. This program is distributed in the hope that it will be useful, but
WITHOUT ANY WARRANTY; without even the implied warranty of MERCHANTABILITY or FITNESS FOR A PARTICULAR
PURPOSE. See the GNU General Public License for more details. You should have received a copy of the GNU
General Public License along with this program. If not, see <https://www.gnu.org/licenses/>.`
	isc = `Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is
hereby granted, provided that the above copyright notice and this permission notice appear in all copies.
THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH REGARD TO THIS SOFTWARE INCLUDING
ALL IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR ANY SPECIAL,
DIRECT, INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER RESULTING FROM LOSS OF USE, DATA OR PROFITS,
WHETHER IN AN ACTION OF CONTRACT, NEGLIGENCE OR OTHER TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE
USE OR PERFORMANCE OF THIS SOFTWARE.`
)

func TestCheck(t *testing.T) {
	for _, test := range []struct {
		name  string
		files map[string]string
		line  string // what is printed of the module
		wrong string // and a part of the error, if it is one
	}{
		{"allowed", map[string]string{"LICENSE.md": isc, "main.go": gpl}, "ISC", ""},
		{"copyleft", map[string]string{"COPYING": gpl}, "GPL-3.0-or-later", "the licence is GPL-3.0-or-later"},
		{"copyleft of a package that is linked", map[string]string{"LICENSE": isc, "linked/LICENSE": gpl}, "GPL-3.0-or-later,ISC", "GPL"},
		{"of a package that is not", map[string]string{"LICENSE": isc, "other/LICENSE": gpl}, "ISC", ""},
		{"unknown", map[string]string{"LICENSE": "All use of this is subject to our approval."}, "unknown", "want 75"},
		{"more than is known", map[string]string{"LICENSE": isc + strings.Repeat(" For commercial use, ask us.", 20)}, "unknown", "want 75"},
		{"none", map[string]string{"README": isc}, "unknown", "no licence file"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range test.files {
				if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.MkdirAll(filepath.Join(dir, "linked"), 0o755); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			err := check([]module{{"example.com/m", "v1.0.0", dir, map[string]bool{filepath.Join(dir, "linked"): true}}}, &out)
			if want := "example.com/m v1.0.0 " + test.line + "\n"; out.String() != want {
				t.Errorf("printed %q; want %q", out.String(), want)
			}
			switch {
			case err == nil && test.wrong != "":
				t.Errorf("no error; want one with %q", test.wrong)
			case err != nil && (test.wrong == "" || !strings.Contains(err.Error(), test.wrong)):
				t.Errorf("error %q; want %q", err, test.wrong)
			}
		})
	}
}
