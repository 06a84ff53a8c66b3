package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

// A file of an archive or an image; a directory where its name ends in a slash.
type file struct {
	name    string
	mode    int64
	content []byte
}

// pack is a tar archive with the files in this order, all of root's and of 1970.
func pack(files []file) ([]byte, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, f := range files {
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.content)),
			ModTime: time.Unix(0, 0), Format: tar.FormatPAX,
		}
		if strings.HasSuffix(f.name, "/") {
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return archive.Bytes(), nil
}

// writePacked writes the files as a compressed archive to path.
func writePacked(path string, files []file) error {
	archive, err := pack(files)
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed) // without a name and a time
	if _, err := w.Write(archive); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, packed.Bytes(), 0o644)
}

// unpack is the inverse of writePacked: the regular files of an archive, in its order.
func unpack(packed io.Reader) ([]file, error) {
	r, err := gzip.NewReader(packed)
	if err != nil {
		return nil, err
	}
	var files []file
	for archive := tar.NewReader(r); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		if header.Typeflag != tar.TypeReg {
			return nil, fmt.Errorf("%s is no regular file", header.Name)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			return nil, err
		}
		files = append(files, file{header.Name, header.Mode, content})
	}
}

// archive writes to path.tar.gz a program with its licences, and beside it what it is
// made of and where it comes from.
func (b *builder) archive(made program, path string) error {
	content, err := os.ReadFile(made.path)
	if err != nil {
		return err
	}
	err = writePacked(path+".tar.gz", []file{
		{made.file(), 0o755, content},
		{licenceFile, 0o644, b.licence},
		{noticesFile, 0o644, notices(made.components)},
	})
	if err != nil {
		return err
	}
	bom, err := b.bom(cyclonedx.ComponentTypeApplication, made.components, made.settings()...)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".cdx.json", bom, 0o644); err != nil {
		return err
	}
	return b.attest(path+".tar.gz", &made)
}

// checksums writes the SHA-256 sums of the files in dir to dir/SHA256SUMS, as
// sha256sum -c reads them.
func checksums(dir string) error {
	const name = "SHA256SUMS"
	var lines strings.Builder
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error { // in lexical order
		if err != nil || !entry.Type().IsRegular() || entry.Name() == name {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%x  %s\n", sha256.Sum256(content), filepath.ToSlash(relative))
		return nil
	})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name), []byte(lines.String()), 0o644)
}
