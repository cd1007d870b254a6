package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/forebay-gateway/forebay/gateway/config"
)

const module = "github.com/forebay-gateway/forebay"

// source reads doc comments and constants out of the packages that have a Config.
type source struct {
	root     string
	packages map[string]map[string]*ast.File // by import path, then by file
}

func newSource(root string) *source {
	return &source{root: root, packages: map[string]map[string]*ast.File{}}
}

// pkg is the parsed package at an import path of this module.
func (s *source) pkg(path string) (map[string]*ast.File, error) {
	if p, ok := s.packages[path]; ok {
		return p, nil
	}
	dir, ok := strings.CutPrefix(path, module)
	if !ok {
		return nil, fmt.Errorf("%s is not in this module", path)
	}
	names, err := filepath.Glob(filepath.Join(s.root, dir, "*.go"))
	if err != nil {
		return nil, err
	}
	files := map[string]*ast.File{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		files[name] = f
	}
	s.packages[path] = files
	return files, nil
}

// doc is the doc comment of the field behind k as one paragraph. A section without one has that of its type.
func (s *source) doc(k *config.Key) (string, error) {
	text, err := s.field(k.Owner, k.Field)
	if err == nil && text == "" && k.Kind == config.Section {
		text, err = s.typeDoc(k.Type)
	}
	if err != nil {
		return "", err
	}
	if text == "" {
		return "", fmt.Errorf("%v.%s has no doc comment: it is the only description of %s", k.Owner, k.Field, k.Path)
	}
	return text, nil
}

func (s *source) field(owner reflect.Type, name string) (doc string, err error) {
	err = s.eachType(owner, func(_ *ast.GenDecl, spec *ast.TypeSpec) {
		st, ok := spec.Type.(*ast.StructType)
		if !ok {
			return
		}
		for _, f := range st.Fields.List {
			for _, n := range f.Names {
				if n.Name == name {
					doc = paragraph(f.Doc)
					if doc == "" {
						doc = paragraph(f.Comment)
					}
				}
			}
		}
	})
	return doc, err
}

// typeDoc is the comment of a type without its name: "JournalConfig are the files …" says "The files …" below its key.
func (s *source) typeDoc(t reflect.Type) (doc string, err error) {
	err = s.eachType(t, func(decl *ast.GenDecl, spec *ast.TypeSpec) {
		doc = paragraph(spec.Doc)
		if doc == "" {
			doc = paragraph(decl.Doc)
		}
	})
	for _, verb := range []string{" is ", " are "} {
		if rest, ok := strings.CutPrefix(doc, t.Name()+verb); ok && rest != "" {
			doc = strings.ToUpper(rest[:1]) + rest[1:]
		}
	}
	return doc, err
}

// eachType calls fn with the declaration of t.
func (s *source) eachType(t reflect.Type, fn func(*ast.GenDecl, *ast.TypeSpec)) error {
	files, err := s.pkg(t.PkgPath())
	if err != nil {
		return err
	}
	for _, f := range files {
		for _, d := range f.Decls {
			decl, ok := d.(*ast.GenDecl)
			if !ok || decl.Tok != token.TYPE {
				continue
			}
			for _, sp := range decl.Specs {
				if spec := sp.(*ast.TypeSpec); spec.Name.Name == t.Name() {
					fn(decl, spec)
				}
			}
		}
	}
	return nil
}

// values are the string constants of type t in the order of the source: what a key of that type takes. There are none for
// types that are not ours or not words.
func (s *source) values(t reflect.Type) ([]string, error) {
	if t.Kind() != reflect.String || !strings.HasPrefix(t.PkgPath(), module) {
		return nil, nil
	}
	files, err := s.pkg(t.PkgPath())
	if err != nil {
		return nil, err
	}
	var out []string
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			if id, ok := spec.Type.(*ast.Ident); !ok || id.Name != t.Name() {
				return true
			}
			for _, v := range spec.Values {
				lit, ok := v.(*ast.BasicLit)
				if !ok {
					continue
				}
				if word, err := strconv.Unquote(lit.Value); err == nil && !slices.Contains(out, word) {
					out = append(out, word)
				}
			}
			return true
		})
	}
	return out, nil
}

// paragraph joins the lines of a comment.
func paragraph(c *ast.CommentGroup) string {
	return strings.Join(strings.Fields(c.Text()), " ")
}
