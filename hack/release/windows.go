package main

import (
	"encoding/binary"
	"unicode/utf16"
)

// The image for Windows is one of a HostProcess container: a process of the host, with a directory of its own.
// It needs no base image, and fits each version of Windows. Its layer has what Windows wants to see in the
// lowest layer of each image: five registry hives, which are never loaded. They are empty ones.
// https://kubernetes.io/docs/tasks/configure-pod-container/create-hostprocess-pod/

// windowsFiles are the files of the image for Windows. What is in Files/ is in the directory of the container.
func windowsFiles(program file, licences []file) []file {
	files := []file{
		{name: "Files/", mode: 0o755},
		{name: "Files/Windows/", mode: 0o755},
		{name: "Files/Windows/System32/", mode: 0o755},
		{name: "Files/Windows/System32/config/", mode: 0o755},
	}
	for _, name := range []string{"DEFAULT", "SAM", "SECURITY", "SOFTWARE", "SYSTEM"} {
		files = append(files, file{name: "Files/Windows/System32/config/" + name, mode: 0o644, content: emptyHive(name)})
	}
	for _, f := range append(licences, program) {
		f.name = "Files/" + f.name
		files = append(files, f)
	}
	return files
}

const hivePage = 4096

// emptyHive is a registry hive with a root key and nothing else: a page with the base block, and one with the only
// bin. Cells are numbered from the start of that bin, and their sizes are negative while they are in use.
// https://github.com/msuhanov/regf/blob/master/Windows%20registry%20file%20format%20specification.md
func emptyHive(name string) []byte {
	const (
		binHeader = 32
		none      = 0xffffffff
	)
	descriptor := openToAdministrators()
	root := make([]byte, 76, 76+len(name))
	security := make([]byte, 20, 20+len(descriptor))
	rootCell := uint32(binHeader)
	securityCell := rootCell + cellSize(76+len(name))
	freeCell := securityCell + cellSize(20+len(descriptor))
	le := binary.LittleEndian

	copy(root, "nk")
	le.PutUint16(root[2:], 0x04|0x08|0x20) // the root, not to be deleted, its name in ASCII
	le.PutUint32(root[16:], none)          // parent
	le.PutUint32(root[28:], none)          // list of subkeys
	le.PutUint32(root[32:], none)          // list of volatile subkeys
	le.PutUint32(root[40:], none)          // list of values
	le.PutUint32(root[44:], securityCell)
	le.PutUint32(root[48:], none) // class
	le.PutUint16(root[72:], uint16(len(name)))
	root = append(root, name...)

	copy(security, "sk")
	le.PutUint32(security[4:], securityCell) // the next of the ring of descriptors
	le.PutUint32(security[8:], securityCell) // the one before
	le.PutUint32(security[12:], 1)           // references
	le.PutUint32(security[16:], uint32(len(descriptor)))
	security = append(security, descriptor...)

	hive := make([]byte, 2*hivePage)
	copy(hive, "regf")
	le.PutUint32(hive[4:], 1)         // written once,
	le.PutUint32(hive[8:], 1)         // and wholly
	le.PutUint32(hive[20:], 1)        // major version
	le.PutUint32(hive[24:], 3)        // minor version
	le.PutUint32(hive[32:], 1)        // a file that is loaded directly
	le.PutUint32(hive[36:], rootCell) // where the root is
	le.PutUint32(hive[40:], hivePage) // size of all bins
	le.PutUint32(hive[44:], 1)
	for k, unit := range utf16.Encode([]rune(name)) {
		le.PutUint16(hive[48+2*k:], unit)
	}
	le.PutUint32(hive[508:], hiveChecksum(hive))

	bin := hive[hivePage:]
	copy(bin, "hbin")
	le.PutUint32(bin[8:], hivePage)
	for at, content := range map[uint32][]byte{rootCell: root, securityCell: security} {
		le.PutUint32(bin[at:], -cellSize(len(content)))
		copy(bin[at+4:], content)
	}
	le.PutUint32(bin[freeCell:], hivePage-freeCell)
	return hive
}

// cellSize is the size of a cell, which has its size before its content and is a multiple of eight.
func cellSize(content int) uint32 { return uint32((4 + content + 7) &^ 7) }

// hiveChecksum is that of a base block, of what comes before it.
func hiveChecksum(block []byte) uint32 {
	var sum uint32
	for at := 0; at < 508; at += 4 {
		sum ^= binary.LittleEndian.Uint32(block[at:])
	}
	switch sum {
	case 0:
		return 1
	case 0xffffffff:
		return 0xfffffffe
	}
	return sum
}

// openToAdministrators is a security descriptor, relative to itself: the administrators own the key, and they and
// the system may do everything.
// https://learn.microsoft.com/openspecs/windows_protocols/ms-dtyp/7d4dac05-9cef-4563-a058-f108abecce1d
func openToAdministrators() []byte {
	sid := func(authorities ...uint32) []byte {
		s := []byte{1, byte(len(authorities)), 0, 0, 0, 0, 0, 5} // of the NT authority
		for _, a := range authorities {
			s = binary.LittleEndian.AppendUint32(s, a)
		}
		return s
	}
	administrators, system := sid(32, 544), sid(18)
	var entries []byte
	for _, who := range [][]byte{administrators, system} {
		const allow, inherited, everything = 0, 0x02, 0x000f003f // KEY_ALL_ACCESS
		entries = append(entries, allow, inherited, byte(8+len(who)), 0)
		entries = binary.LittleEndian.AppendUint32(entries, everything)
		entries = append(entries, who...)
	}
	const header = 20
	acl := []byte{2, 0, byte(8 + len(entries)), 0, 2, 0, 0, 0} // with two entries
	acl = append(acl, entries...)
	d := make([]byte, header)
	d[0] = 1                                           // revision
	binary.LittleEndian.PutUint16(d[2:], 0x8000|0x004) // relative to itself, with a list of who may do what
	binary.LittleEndian.PutUint32(d[16:], header)
	d = append(d, acl...)
	binary.LittleEndian.PutUint32(d[4:], uint32(len(d))) // owner
	d = append(d, administrators...)
	binary.LittleEndian.PutUint32(d[8:], uint32(len(d))) // group
	return append(d, system...)
}
