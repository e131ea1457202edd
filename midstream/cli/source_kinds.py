"""Which files hold source text, by their names.

`midstream rules test FILE` takes the text of such a file as an edit of it, and any other
text as prose. Prose formats (Markdown, plain text) are not in the list: an answer in a chat
looks like them. A list that is too short makes rules look broken (spec/ttsr.md B24), so it
is wide, and what was inferred is always said.
"""

from pathlib import PurePath

_EXTENSIONS = """
ada adb ads agda asm astro awk bash bat bazel bib bicep bzl c c++ cabal cc cfg cginc cl clj
cljc cljs cls cmake cmd cob coffee conf cpp cr cs csh cshtml csproj css csv cts cu cuh cxx
cypher d dart dhall diff dockerfile dot eex ejs el elm env erb erl ex exs f f90 f95 fish fs
fsi fsproj fsx gd gemspec gleam glsl go gql gradle graphql groovy h h++ haml handlebars hbs
hcl heex hh hlsl hpp hrl hs htm html hx hxx idr ini inl ino ipp ipynb j2 jade java jinja
jinja2 jl js json json5 jsonc jsonl jsp jsx kt kts ksh less lean lhs liquid lisp lock lsp lua
m make mak mdx mjs mk ml mli mm mod move mojo mts mustache nasm ndjson nim nims nix njk nomad
nu odin opencl pas patch php phtml pl plist plsql pm po pp prisma pro proj properties props
proto ps1 psd1 psm1 pug purs pxd py pyi pyw pyx qml r rake rb rbi rbs re rego rei res rkt rmd
ron rs s sass sbt scala scad scm scss sh sln sol sql star styl sum sv svelte svg svh swift t
tcl templ tex tf tfvars thrift toml tpl ts tsv tsx twig typ v vala vb vbproj vbs vert vhd vhdl
vim vue wat wgsl wit xaml xhtml xml xsd xsl xslt yaml yml zig zsh
"""
_NAMES = """
brewfile build build.bazel caddyfile cmakelists.txt containerfile dockerfile gemfile
gnumakefile jenkinsfile justfile makefile pipfile podfile procfile rakefile requirements.txt
tiltfile vagrantfile workspace .babelrc .bashrc .dockerignore .editorconfig .env .eslintrc
.gitattributes .gitignore .npmrc .prettierrc .profile .zshrc
"""


_KNOWN = frozenset(_EXTENSIONS.split())
_KNOWN_NAMES = frozenset(_NAMES.split())


def is_source(path: str) -> bool:
    """Whether a file of this name holds source text rather than prose."""
    name = PurePath(path).name.lower()
    extension = name.rpartition(".")[2] if "." in name else ""
    first = name.split(".")[0]
    return extension in _KNOWN or name in _KNOWN_NAMES or first in ("dockerfile", "makefile")
