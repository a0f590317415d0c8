import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;

/** Prints what the JDBC driver of Arrow Flight SQL gets: a statement, a parameter, the tables, an error. */
public class FlightSqlClient {
    public static void main(String[] args) throws Exception {
        Class.forName("org.apache.arrow.driver.jdbc.ArrowFlightJdbcDriver");
        try (Connection connection = DriverManager.getConnection(args[0])) {
            try (ResultSet rows = connection.createStatement().executeQuery(
                    "SELECT k, secret, ts FROM seen WHERE k < 3 ORDER BY k")) {
                while (rows.next()) {
                    System.out.println("row " + rows.getLong(1) + " " + rows.getString(2));
                }
            }
            try (PreparedStatement statement = connection.prepareStatement("SELECT count(*) AS n FROM seen WHERE k >= 590");
                    ResultSet rows = statement.executeQuery()) {
                rows.next();
                System.out.println("count " + rows.getLong("n"));
            }
            try (ResultSet tables = connection.getMetaData().getTables(null, null, "%", null)) {
                while (tables.next()) {
                    System.out.println("table " + tables.getString("TABLE_NAME") + " " + tables.getString("TABLE_TYPE"));
                }
            }
            try (ResultSet columns = connection.getMetaData().getColumns(null, "main", "seen", "%")) {
                while (columns.next()) {
                    System.out.println("column " + columns.getString("COLUMN_NAME") + " " + columns.getString("TYPE_NAME"));
                }
            }
            String[] what = {"catalogs", "schemas", "kinds", "types", "keys"};
            ResultSet[] lists = {connection.getMetaData().getCatalogs(), connection.getMetaData().getSchemas(),
                    connection.getMetaData().getTableTypes(), connection.getMetaData().getTypeInfo(),
                    connection.getMetaData().getPrimaryKeys(null, "main", "seen")};
            for (int i = 0; i < lists.length; i++) {
                int count = 0;
                while (lists[i].next()) {
                    count++;
                }
                System.out.println(what[i] + " " + count);
                lists[i].close();
            }
            System.out.println("product " + connection.getMetaData().getDatabaseProductName());
            try (PreparedStatement statement = connection.prepareStatement(
                    "SELECT count(*) AS n FROM seen WHERE k >= ? AND secret = ?")) {
                statement.setLong(1, 590);
                statement.setString(2, "s2");
                try (ResultSet rows = statement.executeQuery()) {
                    rows.next();
                    System.out.println("bound " + rows.getLong("n"));
                }
            } catch (Exception error) {
                System.out.println("bound " + error);
            }
            try {
                connection.createStatement().executeQuery("SELECT * FROM nothing_there");
            } catch (java.sql.SQLException error) {
                System.out.println("error " + error.getMessage().contains("nothing_there"));
            }
        }
    }
}
